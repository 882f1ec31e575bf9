"""The servers and workers of a local cluster, before they are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from stratagem_deploy.clusters.plan import Plan
from stratagem_deploy.clusters.server_process import ServerCommand, ServerProcess
from stratagem_deploy.clusters.servers import RestartableServer, ServerThread
from stratagem_deploy.clusters.workers import LocalWorker, ProcessWorker, ThreadWorker
from stratagem_deploy.processes.private_directory import PrivateDirectory
from stratagem_deploy.processes.process import share_of_cores

Show = Callable[[str, int], Callable[[str], None] | None]
"""Returns what shows the output of a task, by its job and index."""


NewServer = Callable[[str, int, str], RestartableServer]
"""Makes a server of a job, with its index in it and its address; starts nothing."""


@dataclass(frozen=True)
class Tasks:
    """The servers and workers of a local cluster.

    Attributes:
        servers: Its servers by job; their order is that of their indices.
        workers: Workers that make calls.
        new_server: Makes one more server.
    """

    servers: Mapping[str, list[RestartableServer]]
    workers: Sequence[LocalWorker]
    new_server: NewServer


def threads(plan: Plan, addresses: Mapping[str, Sequence[object]]) -> Tasks:
    """Return tasks that live in this process.

    Args:
        plan: Which.
        addresses: Where they listen, by job and index.
    """

    def new_server(job: str, index: int, address: str) -> RestartableServer:
        return ServerThread(partial(plan.new_server, job, index, address))

    workers = [ThreadWorker(f"worker:{index}") for index in range(plan.workers)]
    return Tasks(_all_servers(plan, addresses, new_server), workers, new_server)


def _all_servers(
    plan: Plan, addresses: Mapping[str, Sequence[object]], new_server: NewServer
) -> Mapping[str, list[RestartableServer]]:
    return {
        job: [new_server(job, index, str(addresses[job][index])) for index in range(count)]
        for job, count in plan.served.items()
    }


def processes(
    plan: Plan, addresses: Mapping[str, Sequence[object]], directory: PrivateDirectory, show: Show
) -> Tasks:
    """Return tasks that are processes of their own.

    Args:
        plan: Which.
        addresses: Where they listen, by job and index.
        directory: Where their files go.
        show: Shows their output.
    """
    token_file = directory.write_secret("token", plan.token)
    options = _options(plan)

    def new_server(job: str, index: int, address: str) -> RestartableServer:
        own = share_of_cores(plan.worker_servers) if job == "worker" else {}
        command = ServerCommand(job, index, address, token_file, options[job], own)
        return ServerProcess(command, show=show(job, index))

    workers = [
        ProcessWorker(f"worker:{index}", directory.path, show("worker", index))
        for index in range(plan.workers)
    ]
    return Tasks(_all_servers(plan, addresses, new_server), workers, new_server)


def _options(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Return the further options of a server's command line, by job."""
    lease = plan.lease_seconds
    both = () if lease is None else ("--lease-seconds", str(lease))
    return {"ps": (*both, *plan.storage.options), "worker": both}
