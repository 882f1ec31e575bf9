"""The resolver of the environment variable `TF_CONFIG`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem._cluster.spec import ClusterSpec
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem_proto.errors import InvalidTypeError

if TYPE_CHECKING:
    from stratagem_proto.configuration.tf_config import TFConfig


class TFConfigClusterResolver(ClusterResolver):
    """A resolver that reads the environment variable `TF_CONFIG` at each call.

    The variable holds JSON such as `{"cluster": {"ps": ["host1:2222"], "worker": ["host2:2222"]},
    "task": {"type": "worker", "index": 0}}`; if it is not set, the cluster is empty. Every method
    raises `InvalidArgumentError` if it cannot be read.

    Args:
        task_type: Job of this process, instead of `TF_CONFIG.task.type`.
        task_id: Index of this process, instead of `TF_CONFIG.task.index`.
        rpc_layer: Protocol, instead of `TF_CONFIG.rpc_layer`.
        environment: Free text, instead of `TF_CONFIG.environment`.

    Spec: RES-7 to RES-11.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        super().__init__(task_type, task_id, environment)
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster of `TF_CONFIG`."""
        return ClusterSpec(_tf_config().cluster)

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default of this one.

        It is `TF_CONFIG.session_master` if that is set, and "" in a cluster of at most one task,
        which needs no address. Spec: RES-9.

        Raises:
            InvalidArgumentError: The cluster has no such task.
        """
        if session_master := _tf_config().session_master:
            return self._formatted(session_master, rpc_layer)
        cluster = self.cluster_spec()
        if sum(cluster.num_tasks(job) for job in cluster.jobs) <= 1:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        return self._formatted(self._address(task_type, task_id), rpc_layer)

    def _found_task_type(self) -> str | None:
        own = self._task_type
        return _tf_config().task.type if own is None else own

    def _found_task_id(self) -> int | None:
        own = self._task_id
        return _tf_config().task.index if own is None else own

    @property
    def environment(self) -> str | None:
        """Free text about where the cluster runs, None if unknown."""
        own = self._environment
        return _tf_config().environment if own is None else own

    @property
    def rpc_layer(self) -> str | None:
        """Protocol in front of addresses, None for bare ones."""
        own = self._rpc_layer
        return _tf_config().rpc_layer if own is None else own

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def given_or_default(resolver: ClusterResolver | None) -> ClusterResolver:
    """Return the resolver that a strategy was given, or that of `TF_CONFIG`.

    Raises:
        InvalidTypeError: What was given is none.
    """
    if resolver is None:
        return TFConfigClusterResolver()
    if not isinstance(resolver, ClusterResolver):
        raise InvalidTypeError(
            f"{resolver!r} is no ClusterResolver; pass for instance "
            "SimpleClusterResolver(ClusterSpec(...), task_type=..., task_id=...)"
        )
    return resolver


def _tf_config() -> TFConfig:
    # Checking takes pydantic, which takes long to load; few processes need it.
    from stratagem_proto.configuration.tf_config import read_tf_config

    return read_tf_config()
