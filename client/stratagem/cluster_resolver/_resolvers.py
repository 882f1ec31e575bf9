"""What all resolvers have in common, and those that look nothing up elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from stratagem._cluster.tasks import ClusterSpec, Tasks
from stratagem._core.device_names import list_logical_devices
from stratagem_proto.errors import (
    DuplicateTaskError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)
from stratagem_proto.secret_files import TOKEN_FILE

if TYPE_CHECKING:
    from stratagem_proto.configuration.tf_config import TFConfig
    from stratagem_proto.v1.status_pb2 import GetStatusResponse


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
        return TOKEN_FILE.from_environment() if token is None else token

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


class UnionResolver(ClusterResolver):
    """A resolver that unites the clusters of others.

    Args:
        *args: The resolvers; the first one says what the arguments leave open.
        rpc_layer: Protocol in front of addresses.
        task_type: Job of this process.
        task_id: Index of this process in its job.

    Raises:
        InvalidArgumentError: There is no resolver, or an unknown keyword.
        InvalidTypeError: One of them is no `ClusterResolver`.

    Spec: RES-2 to RES-6.
    """

    def __init__(
        self,
        *args: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(task_type, task_id)
        if kwargs:
            raise InvalidArgumentError(
                f"Unexpected kwargs provided: {', '.join(kwargs)}; UnionResolver takes "
                "rpc_layer, task_type and task_id"
            )
        _check(args)
        self._resolvers = args
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return the union of the clusters as they are now.

        Tasks of a job that several describe are numbered on, in the order of the resolvers; if a
        description has gaps, each task keeps its number.

        Raises:
            DuplicateTaskError: Two of them describe the same task, where numbers are kept.

        Spec: RES-3.
        """
        parts: dict[str, list[Tasks]] = defaultdict(list)
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                parts[job].append(tasks)
        return ClusterSpec({job: _united(job, parts[job]) for job in parts})

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of the task, without one the first resolver's master.

        Raises:
            InvalidArgumentError: The cluster has no such task.

        Spec: RES-5.
        """
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        address = self._address(task_type, task_id)
        # The others' protocols are those of their own masters.
        layer = rpc_layer or self._rpc_layer
        return f"{layer}://{address}" if layer else address

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """Return what the first resolver does. Spec: RES-6."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    def _found_task_type(self) -> str | None:
        """Spec: RES-4."""
        return self._task_type or self._resolvers[0].task_type

    def _found_task_id(self) -> int | None:
        """Spec: RES-4."""
        own = self._task_id
        return self._resolvers[0].task_id if own is None else own

    @property
    def environment(self) -> str | None:
        """What the first resolver says. Spec: RES-4."""
        return self._resolvers[0].environment

    @property
    def rpc_layer(self) -> str | None:
        """Protocol in front of addresses, None for bare ones. Spec: RES-4."""
        return self._rpc_layer or self._resolvers[0].rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _check(resolvers: Sequence[object]) -> None:
    if not resolvers:
        raise InvalidArgumentError(
            "At least one ClusterResolver is required; give the resolvers to unite"
        )
    for resolver in resolvers:
        if not isinstance(resolver, ClusterResolver):
            raise InvalidTypeError(
                f"UnionResolver unites resolvers, and {resolver!r} is no ClusterResolver"
            )


def _united(job: str, parts: Sequence[Tasks]) -> Tasks:
    lists = [part for part in parts if not isinstance(part, Mapping)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    united: dict[int, str] = {}
    for part in parts:
        tasks = part if isinstance(part, Mapping) else dict(enumerate(part))
        if twice := sorted(united.keys() & tasks.keys()):
            raise DuplicateTaskError(
                f"Duplicate keys detected when merging the tasks of job {job!r}: "
                f"several resolvers describe its tasks {twice}. As one of them leaves "
                "gaps between its tasks, each task keeps its number"
            )
        united |= tasks
    return united


_LOCAL = "local"
_LAYER = "grpc"


class TPUClusterResolver(ClusterResolver):
    """A resolver of accelerator hosts that are given by their addresses.

    The hosts are worker servers, and their accelerators take the place of TPU cores. Nothing is
    looked up in a cloud.

    Args:
        tpu: Addresses of the hosts with commas between them, as in "10.0.0.1:8470,10.0.0.2:8470",
            each with or without "grpc://"; or "local" for the accelerators of this process.
        job_name: Job of the hosts.
        coordinator_name: Job of the process that drives them; None to leave it out of the cluster.
        coordinator_address: Its address, "host:port".

    Raises:
        InvalidArgumentError: There is no address, or a coordinator without one.

    Spec: RES-21.
    """

    rpc_layer: str | None = _LAYER

    def __init__(
        self,
        tpu: str,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
    ) -> None:
        super().__init__(job_name, 0)
        self._is_local = tpu == _LOCAL
        self._cluster = {} if self._is_local else {job_name: _addresses(tpu)}
        if coordinator_name is None:
            return
        if coordinator_address is None:
            raise InvalidArgumentError(
                f"coordinator_name is {coordinator_name!r}; give the address of this "
                "task as coordinator_address, as in 'host:2222'"
            )
        self._cluster[coordinator_name] = [coordinator_address]

    def cluster_spec(self) -> ClusterSpec:
        """Return the hosts and the coordinator; an empty cluster if all is local."""
        return ClusterSpec(self._cluster)

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default of the first host; "" if local.

        Raises:
            InvalidArgumentError: The cluster has no such task.
        """
        if self._is_local:
            return ""
        if task_type is None or task_id is None:
            task_type, task_id = self.task_type, self.task_id
        return self._formatted(self._address(task_type, task_id), rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """Return the number of GPUs of a host, by default the first, as `{"TPU": 8}`.

        Raises:
            InvalidArgumentError: The cluster has no such task.
            UnavailableError: The host, which is asked, cannot be reached.
            UnauthenticatedError: It has another cluster token.
            FailedPreconditionError: What answers there is no worker server.
        """
        if self._is_local:
            return {"TPU": len(list_logical_devices("GPU"))}
        if task_type is None or task_id is None:
            task_type, task_id = self.task_type, self.task_id
        address = self._address(task_type, task_id)
        status = _status(address, self._secret())
        if not status.HasField("worker_server"):
            raise FailedPreconditionError(
                f"{address} is {status.task.job}:{status.task.index}, which is no worker "
                "server; start `stratagem worker` there, or give the address of one"
            )
        return {"TPU": status.worker_server.gpus}


def _status(address: str, token: str) -> GetStatusResponse:
    # Late: few programs ask, and nothing else here needs the wire.
    import grpc

    from stratagem_proto.wire.status import from_rpc_error
    from stratagem_rpc.asking import begin_status
    from stratagem_rpc.channel import Deadlines, open_channel

    with open_channel(address) as channel:
        call = begin_status(channel, token, Deadlines().call, wait_for_ready=True)
        try:
            return call.result()
        except grpc.RpcError as error:
            raise from_rpc_error(error, address, "GetStatus") from error


def _addresses(tpu: str) -> list[str]:
    hosts = [host.strip().removeprefix(f"{_LAYER}://") for host in tpu.split(",")]
    if not all(":" in host for host in hosts):
        raise InvalidArgumentError(
            f"tpu is {tpu!r}, but takes addresses such as '10.0.0.1:8470,10.0.0.2:8470'"
            " or 'local'; names are not looked up in a cloud"
        )
    return hosts
