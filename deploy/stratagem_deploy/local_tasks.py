"""The servers and workers of a local cluster, before they are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stratagem_deploy.private_directory import PrivateDirectory
from stratagem_deploy.process import share_of_cores
from stratagem_deploy.server_process import ServerCommand, ServerProcess
from stratagem_deploy.servers import Server, ServerThread
from stratagem_deploy.workers import ProcessWorker, ThreadWorker, Worker
from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings

Show = Callable[[str, int], Callable[[str], None] | None]
"""Returns what shows the output of a task, by its job and index."""


@dataclass(frozen=True)
class Plan:
    """Which tasks there are, and how the servers among them are set up.

    Attributes:
        ps: Number of parameter servers.
        workers: Number of workers that make calls.
        worker_servers: Number of workers that serve a coordinator.
        token: The cluster's secret.
        lease_seconds: Silence after which a server takes a client for dead; None for
            what is usual for its kind.
        restore: Folder of checkpoints that parameter servers begin with, or "".

    Raises:
        InvalidArgumentError: There would be nobody, or less than that; workers of both
            kinds; or no server that could restore anything.
    """

    ps: int
    workers: int
    worker_servers: int
    token: str = field(repr=False)
    lease_seconds: float | None
    restore: str

    def __post_init__(self) -> None:
        numbers = self.ps, self.workers, self.worker_servers
        if min(numbers) < 0 or not any(numbers):
            raise InvalidArgumentError(
                f"a cluster of {self.ps} parameter servers, {self.workers} workers and "
                f"{self.worker_servers} worker servers cannot be; ask for at least one "
                "of them"
            )
        if self.workers and self.worker_servers:
            raise InvalidArgumentError(
                "the workers of a cluster either run the program or serve a "
                "coordinator; ask for workers or for worker_servers, not for both"
            )
        if self.restore and not self.ps:
            raise InvalidArgumentError(
                f"a cluster without parameter servers cannot restore {self.restore!r}; "
                "ask for servers, or restore it by strategy.restore()"
            )

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of tasks of each job."""
        return {"ps": self.ps, "worker": self.workers + self.worker_servers}

    @property
    def served(self) -> Mapping[str, int]:
        """The number of servers of each job."""
        return {"ps": self.ps, "worker": self.worker_servers}


NewServer = Callable[[str, int, str], Server]
"""Makes a server of a job, with its index in it and its address; starts nothing."""


@dataclass(frozen=True)
class Tasks:
    """What a local cluster is made of.

    Attributes:
        servers: Its servers by job; their order is that of their indices.
        workers: Workers that make calls.
        new_server: Makes one more server.
    """

    servers: Mapping[str, list[Server]]
    workers: Sequence[Worker]
    new_server: NewServer


def threads(plan: Plan, addresses: Mapping[str, Sequence[object]]) -> Tasks:
    """Returns tasks that live in this process.

    Args:
        plan: Which.
        addresses: Where they listen, by job and index.
    """

    def new_server(job: str, index: int, address: str) -> Server:
        return ServerThread(partial(_server, plan, job, index, address))

    workers = [ThreadWorker(f"worker:{index}") for index in range(plan.workers)]
    return Tasks(_all_servers(plan, addresses, new_server), workers, new_server)


def _all_servers(
    plan: Plan, addresses: Mapping[str, Sequence[object]], new_server: NewServer
) -> Mapping[str, list[Server]]:
    return {
        job: [
            new_server(job, index, str(addresses[job][index])) for index in range(count)
        ]
        for job, count in plan.served.items()
    }


def _server(
    plan: Plan, job: str, index: int, address: str
) -> ParameterServer | WorkerServer:
    options: dict[str, Any] = {"bind": address, "task": index, "token": plan.token}
    if plan.lease_seconds is not None:
        options["lease_seconds"] = plan.lease_seconds
    if job == "worker":
        return WorkerServer(WorkerSettings(**options))
    return ParameterServer(ServerSettings(**options, restore=plan.restore))


def processes(
    plan: Plan,
    addresses: Mapping[str, Sequence[object]],
    directory: PrivateDirectory,
    show: Show,
) -> Tasks:
    """Returns tasks that are processes of their own.

    Args:
        plan: Which.
        addresses: Where they listen, by job and index.
        directory: Where their files go.
        show: Shows their output.
    """
    token_file = directory.write_secret("token", plan.token)
    options = _options(plan)

    def new_server(job: str, index: int, address: str) -> Server:
        own = share_of_cores(plan.worker_servers) if job == "worker" else {}
        command = ServerCommand(job, index, address, token_file, options[job], own)
        return ServerProcess(command, show=show(job, index))

    workers = [
        ProcessWorker(f"worker:{index}", directory.path, show("worker", index))
        for index in range(plan.workers)
    ]
    return Tasks(_all_servers(plan, addresses, new_server), workers, new_server)


def _options(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """What the command line of a server says besides, by job."""
    lease = plan.lease_seconds
    both = () if lease is None else ("--lease-seconds", str(lease))
    restore = ("--restore", plan.restore) if plan.restore else ()
    return {"ps": (*both, *restore), "worker": both}
