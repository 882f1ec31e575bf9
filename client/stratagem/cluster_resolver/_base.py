"""What all resolvers have in common, and the one that returns what it was given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from stratagem._cluster.spec import ClusterSpec
from stratagem_proto.configuration.token_file import token_from_environment
from stratagem_proto.errors import InvalidTypeError


class ClusterResolver(ABC):
    """Base of all resolvers: subclasses say where the cluster is described.

    Attributes:
        rpc_layer: Protocol in front of the addresses that `master` returns, for instance "grpc";
            None for bare addresses.
        cluster_token: Secret that proves to servers that this process belongs to the cluster; None
            for that in the file `STRATAGEM_TOKEN_FILE` names.
    """

    rpc_layer: str | None = None
    cluster_token: str | None = None

    def __init__(
        self, task_type: str | None = None, task_id: int | None = None, environment: str | None = ""
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster as it is known now."""

    @abstractmethod
    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, with the protocol in front if there is one.

        Args:
            task_type: Job of the task; which one is meant by None depends on the resolver.
            task_id: Index of the task in its job.
            rpc_layer: Protocol to use instead of the resolver's own.
        """

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """Return the number of accelerators by type, for instance `{"GPU": 8}`.

        Each task of a cluster sees its own machine, so these are the accelerators of this process;
        the arguments are for resolvers that know more.
        """
        count = torch.cuda.device_count()
        return {"GPU": count} if count else {}

    @property
    def task_type(self) -> str | None:
        """Job of this process, None if unknown."""
        return self._found_task_type()

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """Index of this process in its job, None if unknown."""
        return self._found_task_id()

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    def _found_task_type(self) -> str | None:
        """Return the job that was set, or in some resolvers one that is found otherwise."""
        return self._task_type

    def _found_task_id(self) -> int | None:
        """Return the index that was set, or in some resolvers one that is found otherwise."""
        return self._task_id

    @property
    def environment(self) -> str | None:
        """Free text about where the cluster runs."""
        return self._environment

    def _secret(self) -> str:
        """Return the secret of the cluster; by default that of the environment."""
        token = self.cluster_token
        return token_from_environment() if token is None else token

    def _own_master(self, task_type: str | None, task_id: int | None, rpc_layer: str | None) -> str:
        """Return the address of a task, by default of this one; "" if not known."""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        return self._formatted(self._address(task_type, task_id), rpc_layer)

    def _formatted(self, address: str, rpc_layer: str | None = None) -> str:
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer else address

    def _address(self, task_type: str | None, task_id: int | None) -> str:
        # A task that is not known is looked up all the same: the cluster's own error says what is
        # missing.
        return self.cluster_spec().task_address(task_type or "", task_id or 0)


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
