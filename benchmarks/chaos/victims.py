"""Who can be hurt at a moment, and how each is well again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.chaos.cluster import DRAIN_SECONDS, START_SECONDS, Cluster
from benchmarks.takeovers.replicas import Replicas
from stratagem_deploy.clusters.server_process import ServerProcess

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Victim:
    """A process.

    Attributes:
        name: What people call it.
        host: Where it runs.
        send: Sends it a signal.
        kill: Ends it by SIGKILL.
        await_end: Waits until it has ended.
        revive: Starts it again, and waits until it is well.
    """

    name: str
    host: str
    send: Callable[[int], None]
    kill: Callable[[], None]
    await_end: Callable[[], None]
    revive: Callable[[], None]


class Role(Protocol):
    """What several processes are, one after the other.

    Attributes:
        name: What people call whoever has it.
        tasks: The tasks that have it. A task has one fault at a time.
    """

    name: str
    tasks: Sequence[str]

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return who has it; None if nobody of the task may be hurt at present."""


class Replica:
    """The primary of a server, or the backup.

    A server is hurt only while it has a backup: without a log, two faults at once would cost what
    both had in memory.

    Args:
        cluster: The cluster.
        place: 0 for the primary, 1 for the backup.
    """

    def __init__(self, cluster: Cluster, place: int) -> None:
        self.name = ("primary", "backup")[place]
        self.tasks: Sequence[str] = [f"ps:{index}" for index in range(len(cluster.servers))]
        self._cluster, self._place = cluster, place
        self._replicas = [
            Replicas(cluster.resolver, index) for index in range(len(cluster.servers))
        ]

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return the replica; None if another one would be missed."""
        index = self.tasks.index(task)
        both = self._replicas[index].complete()
        if not both:
            return None
        number = both[self._place].replication.replica.index
        server, process = self._cluster.servers[index], self._cluster.replicas[index][number]

        def revive() -> None:
            server.restart(START_SECONDS)

        return _victim(process, f"ps-{index}-{number}", revive)


class Worker:
    """One of the workers; the others go on, so that there is a throughput to be seen.

    Args:
        cluster: The cluster.
    """

    name = "worker"
    tasks: Sequence[str] = ("workers",)

    def __init__(self, cluster: Cluster) -> None:
        self._workers = cluster.workers

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return any worker."""
        index = chance.randrange(len(self._workers))
        worker = self._workers[index]

        def revive() -> None:
            worker.start()
            worker.await_serving(START_SECONDS)

        return _victim(worker, f"worker-{index}", revive)


class Coordinator:
    """The coordinator.

    Args:
        cluster: The cluster.
        steps: Returns how many steps were taken so far.
    """

    name = "coordinator"
    tasks: Sequence[str] = ("coordinator",)

    def __init__(self, cluster: Cluster, steps: Callable[[], int]) -> None:
        self._coordinator, self._steps = cluster.coordinator, steps

    def of(self, task: str, chance: random.Random) -> Victim | None:
        """Return the coordinator."""
        coordinator = self._coordinator

        def revive() -> None:
            before = self._steps()
            coordinator.start()
            deadline = time.monotonic() + START_SECONDS
            while self._steps() == before and coordinator.runs and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)

        name, host = "coordinator", "chief-0"
        ends = coordinator.kill, coordinator.await_end
        return Victim(name, host, coordinator.send, *ends, revive)


def _victim(process: ServerProcess, host: str, revive: Callable[[], None]) -> Victim:
    def send(signum: int) -> None:
        if process.process is not None:
            process.process.send(signum)

    def await_end() -> None:
        if process.process is not None and not process.process.wait(DRAIN_SECONDS):
            process.kill()

    return Victim(process.name, host, send, process.kill, await_end, revive)
