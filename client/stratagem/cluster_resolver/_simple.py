"""The resolver of a cluster that the program knows."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._cluster.spec import ClusterSpec
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem_proto.errors import InvalidTypeError


class SimpleClusterResolver(ClusterResolver):
    """A resolver that returns what it was given.

    Args:
        cluster_spec: The cluster.
        master: Address that `master()` returns when no task is asked for.
        task_type: Job of this process.
        task_id: Index of this process in its job.
        environment: Free text about where the cluster runs.
        num_accelerators: Accelerators by type, for instance `{"GPU": 8}`.
        rpc_layer: Protocol in front of addresses.

    Raises:
        InvalidTypeError: `cluster_spec` is no `ClusterSpec` or `master` no string.

    Spec: RES-1.
    """

    def __init__(  # noqa: PLR0913 - the signature of tf.distribute
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        super().__init__(task_type, task_id, environment)
        if not isinstance(cluster_spec, ClusterSpec):
            raise InvalidTypeError(
                f"cluster_spec is {cluster_spec!r}; pass a stratagem.ClusterSpec"
            )
        if not isinstance(master, str):
            raise InvalidTypeError(f"master is an address as a string, not {master!r}")
        self._cluster_spec = cluster_spec
        self._master = master
        self._num_accelerators = num_accelerators or {}
        self.rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster that was given."""
        return self._cluster_spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of the task, without one the `master` that was given."""
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._address(task_type, task_id)
        return self._formatted(address, rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """Return the accelerators that were given, whatever the task."""
        return self._num_accelerators
