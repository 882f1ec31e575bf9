"""The resolver of hosts whose accelerators are the cores of a `TPUStrategy`."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._cluster.spec import ClusterSpec
from stratagem._core.device_names import list_logical_devices
from stratagem.cluster_resolver._base import ClusterResolver
from stratagem_proto.errors import InvalidArgumentError

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
        # Late: few programs ask, and nothing else here needs the wire.
        from stratagem._cluster.accelerators import gpus_of

        if task_type is None or task_id is None:
            task_type, task_id = self.task_type, self.task_id
        return {"TPU": gpus_of(self._address(task_type, task_id), self._secret())}


def _addresses(tpu: str) -> list[str]:
    hosts = [host.strip().removeprefix(f"{_LAYER}://") for host in tpu.split(",")]
    if not all(":" in host for host in hosts):
        raise InvalidArgumentError(
            f"tpu is {tpu!r}, but takes addresses such as '10.0.0.1:8470,10.0.0.2:8470'"
            " or 'local'; names are not looked up in a cloud"
        )
    return hosts
