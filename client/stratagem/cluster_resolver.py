"""Where a process learns its cluster, and which task of it it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from stratagem._cluster.spec import ClusterSpec
from stratagem_proto.errors import InvalidTypeError

if TYPE_CHECKING:
    from stratagem._cluster.tf_config import TFConfig

__all__ = ["ClusterResolver", "SimpleClusterResolver", "TFConfigClusterResolver"]


class ClusterResolver(ABC):
    """Base of all resolvers: subclasses say where the cluster is described.

    Attributes:
        rpc_layer: Protocol in front of the addresses that `master` returns, for
            instance "grpc"; None for bare addresses.
        cluster_token: Secret that proves to servers that this process belongs to
            the cluster; None for that in the file `STRATAGEM_TOKEN_FILE` names.
    """

    rpc_layer: str | None = None
    cluster_token: str | None = None

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str | None = "",
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster as it is known now."""

    @abstractmethod
    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of a task, with the protocol in front if there is one.

        Args:
            task_type: Job of the task; which one is meant by None depends on the
                resolver.
            task_id: Index of the task in its job.
            rpc_layer: Protocol to use instead of the resolver's own.
        """

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: object = None,
    ) -> Mapping[str, int]:
        """Return the number of accelerators by type, for instance `{"GPU": 8}`.

        Each task of a cluster sees its own machine, so these are the accelerators
        of this process; the arguments are for resolvers that know more.
        """
        count = torch.cuda.device_count()
        return {"GPU": count} if count else {}

    @property
    def task_type(self) -> str | None:
        """Job of this process, None if unknown."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """Index of this process in its job, None if unknown."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def environment(self) -> str | None:
        """Free text about where the cluster runs."""
        return self._environment

    def _formatted(self, address: str, rpc_layer: str | None = None) -> str:
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer else address

    def _address(self, task_type: str | None, task_id: int | None) -> str:
        # A task that is not known is looked up all the same: the cluster's own
        # error says what is missing.
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
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of the task, without one the `master` that was given."""
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._address(task_type, task_id)
        return self._formatted(address, rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: object = None,
    ) -> Mapping[str, int]:
        """Return the accelerators that were given, whatever the task."""
        return self._num_accelerators


class TFConfigClusterResolver(ClusterResolver):
    """A resolver that reads the environment variable `TF_CONFIG` at each call.

    The variable holds JSON such as
    `{"cluster": {"ps": ["host1:2222"], "worker": ["host2:2222"]},
    "task": {"type": "worker", "index": 0}}`; if it is not set, the cluster is
    empty. Every method raises `InvalidArgumentError` if it cannot be read.

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
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of a task, by default of this one.

        It is `TF_CONFIG.session_master` if that is set, and "" in a cluster of at
        most one task, which needs no address. Spec: RES-9.

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

    @property
    def task_type(self) -> str | None:
        """Job of this process, None if unknown."""
        own = self._task_type
        return _tf_config().task.type if own is None else own

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """Index of this process in its job, None if unknown."""
        own = self._task_id
        return _tf_config().task.index if own is None else own

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

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


def _tf_config() -> TFConfig:
    # Checking takes pydantic, which takes long to load; few processes need it.
    from stratagem._cluster.tf_config import read_tf_config

    return read_tf_config()
