"""The servers and workers of a local cluster, before they are started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stratagem_deploy.certificates.local_authority import LocalAuthority
from stratagem_deploy.certificates.subjects import Subject, subject
from stratagem_deploy.clusters.plan import Plan
from stratagem_deploy.clusters.replicated_server import replicated
from stratagem_deploy.clusters.replication import (
    arbiter_folder,
    replica_options,
    replica_settings,
)
from stratagem_deploy.clusters.server_process import (
    ServerCommand,
    ServerProcess,
    patience_for_restarts,
)
from stratagem_deploy.clusters.servers import RestartableServer, ServerThread
from stratagem_deploy.clusters.workers import LocalWorker, ProcessWorker, ThreadWorker
from stratagem_deploy.processes.addresses import ReservedAddresses
from stratagem_deploy.processes.private_directory import PrivateDirectory
from stratagem_deploy.processes.process import equal_order_of_sets, share_of_cores

Show = Callable[[str, int], Callable[[str], None] | None]
"""Returns what shows the output of a process, by its name and the index of its task."""


NewServer = Callable[[str, int, ReservedAddresses], RestartableServer]
"""Makes the server of a task, by its job, index and addresses; starts nothing."""

NewReplica = Callable[[str, int, str, int], RestartableServer]
"""Makes one of its replicas, by the job, the index, its address and its number."""

Addresses = Mapping[str, Sequence[ReservedAddresses]]
"""Where the servers of each job listen."""


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


def threads(plan: Plan, addresses: Addresses, arbiter: Path) -> Tasks:
    """Return tasks that live in this process.

    Args:
        plan: Which.
        addresses: Where they listen, by job and index.
        arbiter: Where replicas agree on which of them serves.
    """

    def new_replica(job: str, index: int, address: str, number: int) -> RestartableServer:
        movable = plan.movable and job == "ps"
        replication = replica_settings(plan.replicas_of(job), number, arbiter, movable)
        return ServerThread(partial(plan.new_server, job, index, address, replication=replication))

    workers = [ThreadWorker(f"worker:{index}") for index in range(plan.workers)]
    return _tasks(plan, addresses, new_replica, workers)


def _tasks(
    plan: Plan, addresses: Addresses, new_replica: NewReplica, workers: Sequence[LocalWorker]
) -> Tasks:
    def new_server(job: str, index: int, where: ReservedAddresses) -> RestartableServer:
        def replica(address: str, number: int) -> RestartableServer:
            return new_replica(job, index, address, number)

        return replicated(f"{job}:{index}", where.replicas, plan.token, replica)

    servers = {
        job: [new_server(job, index, addresses[job][index]) for index in range(count)]
        for job, count in plan.served.items()
    }
    return Tasks(servers, workers, new_server)


def processes(
    plan: Plan,
    addresses: Addresses,
    directory: PrivateDirectory,
    show: Show,
    authority: LocalAuthority | None,
) -> Tasks:
    """Return tasks that are processes of their own.

    Args:
        plan: Which.
        addresses: Where they listen, by job and index.
        directory: Where their files go.
        show: Shows their output.
        authority: Certifies them; None for processes without certificates.
    """
    token_file = directory.write_secret("token", plan.token)
    options = _options(plan)
    arbiter = arbiter_folder(plan.storage, directory.path)
    certified = _certified(plan, authority)

    def new_replica(job: str, index: int, address: str, number: int) -> RestartableServer:
        own = {**_environment(plan, job), **certified(job, index)}
        count = plan.replicas_of(job)
        movable = plan.movable and job == "ps"
        given = *options[job], *replica_options(count, number, arbiter, movable)
        replica = number if count > 1 else None
        command = ServerCommand(job, index, address, token_file, given, own, replica)
        return ServerProcess(command, show=show(command.name, index))

    if plan.workers:
        ProcessWorker.prepare()
    workers = [
        ProcessWorker(
            f"worker:{index}",
            directory.path,
            show(f"worker:{index}", index),
            certified("worker", index),
        )
        for index in range(plan.workers)
    ]
    return _tasks(plan, addresses, new_replica, workers)


def _certified(
    plan: Plan, authority: LocalAuthority | None
) -> Callable[[str, int], Mapping[str, str]]:
    """Return what a task finds in its environment of its certificates, by job and index."""

    def environment(job: str, index: int) -> Mapping[str, str]:
        if authority is None:
            return {}
        is_chief = job == "worker" and index == 0 and plan.workers > 0
        role = "chief" if is_chief else subject(f"{job}:{index}").role
        return authority.environment(Subject(role, job, index))

    return environment


def _environment(plan: Plan, job: str) -> Mapping[str, str]:
    """Return what a server of a job finds in its environment, besides what we found in ours."""
    if job == "worker":
        return {**share_of_cores(plan.worker_servers), **equal_order_of_sets()}
    return patience_for_restarts() if plan.workers else {}


def _options(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Return the further options of a server's command line, by job."""
    lease = plan.lease_seconds
    both = () if lease is None else ("--lease-seconds", str(lease))
    return {"ps": (*both, *plan.storage.options), "worker": both}
