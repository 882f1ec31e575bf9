"""What goes wrong with the processes of a cluster, every few seconds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from benchmarks.stalls.scene import Watched
from benchmarks.takeovers.replicas import Answer, Replicas
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

EVERY_SECONDS = 2.0
_LEAST_SUSPENSION, _MOST_SUSPENSION = 1.0, 20.0


class Fault(NamedTuple):
    """Something that went wrong.

    Attributes:
        moment: When, in seconds.
        kind: What.
        task: With which task, and which of its replicas.
    """

    moment: float
    kind: str
    task: str


class Faults:
    """Kills and suspends processes, and starts again what has ended.

    A task has at most one fault at a time, and a server only while it has a backup: without a log,
    two at once would cost what both had in memory.

    Args:
        cluster: The cluster, of processes: servers with backups, and worker servers.
        servers: The number of servers.
        workers: The number of worker servers.
        chance: Draws what goes wrong.

    Attributes:
        happened: What went wrong so far.
    """

    def __init__(
        self, cluster: LocalCluster, servers: int, workers: int, chance: random.Random
    ) -> None:
        self.happened: list[Fault] = []
        self._cluster, self._chance = cluster, chance
        self._servers = [Replicas(cluster, index) for index in range(servers)]
        self._workers = range(workers)
        self._repairs: dict[str, Future[None]] = {}
        self._is_over = threading.Event()
        self._kinds: Mapping[str, Callable[[], str]] = {
            "primary killed": lambda: self._kill_server(0),
            "backup killed": lambda: self._kill_server(1),
            "primary suspended": lambda: self._suspend_server(0),
            "backup suspended": lambda: self._suspend_server(1),
            "worker killed": self._kill_worker,
            "worker suspended": self._suspend_worker,
        }

    def run(self) -> None:
        """Let something go wrong every few seconds until `end`, then repair all."""
        with ThreadPoolExecutor() as self._threads:
            while not self._is_over.wait(EVERY_SECONDS):
                self._strike()
        for repair in self._repairs.values():
            repair.result()

    def end(self) -> None:
        """Let nothing more go wrong."""
        self._is_over.set()

    def _strike(self) -> None:
        kinds = [*self._kinds]
        self._chance.shuffle(kinds)
        for kind in kinds:
            moment = time.monotonic()
            if task := self._kinds[kind]():
                self.happened.append(Fault(moment, kind, task))
                return

    def _is_whole(self, task: str) -> bool:
        repair = self._repairs.get(task)
        if repair is None or not repair.done():
            return repair is None
        repair.result()
        return True

    def _kill_server(self, place: int) -> str:
        return self._hurt_server(place, self._kill_replica)

    def _suspend_server(self, place: int) -> str:
        return self._hurt_server(place, lambda _, answer: self._suspension(answer.status.pid))

    def _hurt_server(self, place: int, hurt: Callable[[int, Answer], Callable[[], None]]) -> str:
        """Hurt the primary (0) or the backup (1) of a server; return its name, "" for none."""
        for replicas in self._chance.sample(self._servers, len(self._servers)):
            task = f"ps:{replicas.index}"
            if self._is_whole(task) and (both := replicas.complete()):
                self._repairs[task] = self._threads.submit(hurt(replicas.index, both[place]))
                return task
        return ""

    def _kill_replica(self, index: int, answer: Answer) -> Callable[[], None]:
        replica = answer.replication.replica.index
        self._cluster.kill("ps", index, replica)
        return lambda: self._cluster.restart("ps", index, replica)

    def _kill_worker(self) -> str:
        def hurt(index: int) -> Callable[[], None]:
            self._cluster.kill("worker", index)
            return lambda: self._cluster.restart("worker", index)

        return self._hurt_worker(hurt)

    def _suspend_worker(self) -> str:
        pids = Watched.of(self._resolver, "worker").pids()
        return self._hurt_worker(lambda index: self._suspension(pids[f"worker:{index}"]))

    @property
    def _resolver(self) -> ClusterResolver:
        return self._cluster.cluster_resolver

    def _hurt_worker(self, hurt: Callable[[int], Callable[[], None]]) -> str:
        whole = [index for index in self._workers if self._is_whole(f"worker:{index}")]
        # One of them goes on, so that there is a throughput to be seen.
        if len(whole) < len(self._workers):
            return ""
        index = self._chance.choice(whole)
        self._repairs[f"worker:{index}"] = self._threads.submit(hurt(index))
        return f"worker:{index}"

    def _suspension(self, pid: int) -> Callable[[], None]:
        os.kill(pid, signal.SIGSTOP)
        seconds = self._chance.uniform(_LEAST_SUSPENSION, _MOST_SUSPENSION)

        def go_on() -> None:
            self._is_over.wait(seconds)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return go_on
