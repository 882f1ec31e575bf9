"""A server of the cluster in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from stratagem._cluster.tasks import Cluster, ClusterSpec
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_proto.v1.cluster_pb2 import ConfigProto, ServerDef
from stratagem_rpc.serving.task_servers import TaskSettings, task_server
from stratagem_storage.unclosed import Unclosed

_Choice = TypeVar("_Choice")

_PROTOCOL = "grpc"


def server_def_of(
    given: ServerDef | Cluster,
    job_name: str | None,
    task_index: int | None,
    protocol: str | None,
    config: ConfigProto | None,
) -> ServerDef:
    """Return the description of a server; what is not None goes before `given`.

    Raises:
        InvalidTypeError: `given` describes neither a server nor a cluster.
        InvalidArgumentError: The job or the task is not given and not the only one.
        UnimplementedError: The protocol is not known.

    Spec: SRV-1.
    """
    if isinstance(given, ServerDef):
        found = ServerDef()
        found.CopyFrom(given)
        found.job_name = job_name or given.job_name
        if not found.job_name:
            raise InvalidArgumentError(
                "Must specify an explicit `job_name`: the ServerDef has none"
            )
        found.task_index = given.task_index if task_index is None else task_index
    else:
        cluster = ClusterSpec(given)
        job = _sole(cluster.jobs, "job_name") if job_name is None else job_name
        tasks = cluster.task_indices(job)
        index = _sole(tasks, "task_index") if task_index is None else task_index
        found = ServerDef(cluster=cluster.as_cluster_def(), job_name=job, task_index=index)
    found.protocol = protocol or found.protocol or _PROTOCOL
    if found.protocol != _PROTOCOL:
        raise UnimplementedError(
            f"protocol is {found.protocol!r}, but servers speak {_PROTOCOL!r} only"
        )
    if config is not None:
        found.default_session_config.MergeFrom(config)
    return found


def _sole(choices: Sequence[_Choice], what: str) -> _Choice:
    if len(choices) != 1:
        raise InvalidArgumentError(
            f"Must specify an explicit `{what}`: it is one of {list(choices)}"
        )
    return choices[0]


_serving: set[Server] = set()
"""Those that have been started; programs need not keep them."""


class Server:
    """A server of one task of a cluster, in this process.

    A task of the job "ps" is a parameter server, the same as `stratagem ps` starts, and one of the
    job "worker" a worker server, as of `stratagem worker`: it runs what a coordinator sends, and so
    needs a token. Other jobs have no servers. The packages of servers are loaded when the first one
    is made, by their names: the client depends on none of them.

    It listens at the address that the cluster has for the task, or at the `port` of a `ServerDef`;
    where other machines can connect, that takes a token and `insecure`. It serves until it is
    stopped or the program ends, whether or not anybody refers to it.

    Args:
        server_or_cluster_def: A cluster, or a `ServerDef` with the server's own task.
        job_name: Its job; may be left out where there is one.
        task_index: Its index in the job; may be left out where there is one.
        protocol: "grpc".
        config: Configuration of sessions, kept in `server_def`. A server opens none, so device
            filters do not change what it does.
        start: Whether to start it.
        token: Secret of the cluster; by default the contents of the file that STRATAGEM_TOKEN_FILE
            names, if there is one.
        insecure: Whether other machines may connect although nothing is encrypted.

    Raises:
        InvalidTypeError: The first argument describes neither server nor cluster.
        InvalidArgumentError: The task is not given and not the only one, is not in the cluster, or
            may not listen at its address; or it is a worker without a token.
        UnimplementedError: Its job has no servers, or the protocol is not known.
        UnavailableError: Its address is in use, or not one of this machine.

    Spec: SRV-1, SRV-2.
    """

    __module__ = "stratagem"

    def __init__(  # noqa: PLR0913 - the signature of tf.distribute, and security
        self,
        server_or_cluster_def: ServerDef | Cluster,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
        *,
        token: str | None = None,
        insecure: bool = False,
    ) -> None:
        self._server_def = server_def_of(
            server_or_cluster_def, job_name, task_index, protocol, config
        )
        self._started = False
        self._server = task_server(
            TaskSettings(
                self._server_def.job_name,
                self._server_def.task_index,
                _address(self._server_def),
                TOKEN_FILE.from_environment() if token is None else token,
                insecure,
            )
        )
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """Return a parameter server for this machine only, at a free port.

        Args:
            config: As for any server.
            start: Whether to start it.
        """
        return Server({"ps": ["localhost:0"]}, config=config, start=start)

    @property
    def server_def(self) -> ServerDef:
        """What the server was told."""
        return self._server_def

    @property
    def target(self) -> str:
        """Where it is reached, "grpc://host:port"; its port is known once it serves."""
        address = self._server.address or _address(self._server_def)
        return f"{self._server_def.protocol}://{address}"

    def start(self) -> None:
        """Bind and serve; a server that has started goes on.

        Raises:
            UnavailableError: Its address is in use, or not one of this machine.
        """
        if not self._started:
            self._server.start()
            self._started = True
            _serving.add(self)
            _unclosed.add(self)

    def join(self) -> None:
        """Wait until the server has stopped, which it does not by itself."""
        self._server.join()

    def stop(self, grace: float | None = None) -> None:
        """Refuse new calls, and stop; again does nothing.

        Args:
            grace: Seconds for running calls; ten if not given.
        """
        if self._started:
            _serving.discard(self)
            _unclosed.discard(self)
            self._server.stop(grace)


def _stop(server: Server) -> None:
    server.stop(0.0)


_unclosed = Unclosed(_stop)


def _address(server: ServerDef) -> str:
    cluster = ClusterSpec(server.cluster)
    address = cluster.task_address(server.job_name, server.task_index)
    task = f"/job:{server.job_name}/task:{server.task_index}"
    if len(replica_addresses(task, address)) > 1:
        raise UnimplementedError(
            f"{task} has replicas, {address}, and a server in a program has none; start each by "
            "`stratagem ps --replicas 2 --replica N`"
        )
    host, _, _ = address.rpartition(":")
    return f"{host}:{server.port}" if server.port else address
