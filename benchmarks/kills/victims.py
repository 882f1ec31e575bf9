"""Processes that are killed and started again."""

from __future__ import annotations

import random
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import Process, describe_exit


class Victims(ABC):
    """Processes of one kind.

    Attributes:
        job: What they are counted as.
    """

    job: str

    @abstractmethod
    def strike(self, chance: random.Random) -> int:
        """Kill some by SIGKILL and start them again; return how many."""


class _Tasks(Victims):
    """Tasks of a cluster, of which one or all are killed."""

    def __init__(self, cluster: LocalCluster, count: int) -> None:
        self._cluster = cluster
        self._tasks = range(count)

    def strike(self, chance: random.Random) -> int:
        struck: Sequence[int] = self._tasks
        if chance.random() < 1 / 2:
            struck = [chance.choice(self._tasks)]
        self._kill(struck)
        restarts = [
            threading.Thread(target=self._cluster.restart, args=(self.job, each)) for each in struck
        ]
        for restart in restarts:
            restart.start()
        for restart in restarts:
            restart.join()
        return len(struck)

    def _kill(self, tasks: Sequence[int]) -> None:
        for each in tasks:
            self._cluster.kill(self.job, each)


class Servers(_Tasks):
    """Parameter servers."""

    job = "ps"


class WorkerServers(_Tasks):
    """Workers that serve a coordinator."""

    job = "worker"


class Workers(_Tasks):
    """Workers that run a program."""

    job = "worker"

    def _kill(self, tasks: Sequence[int]) -> None:
        """Do nothing: their restart kills them."""


class Program(Victims):
    """A program of its own process, which lives until it is killed.

    Args:
        job: What it is counted as.
        start: Starts it.
    """

    def __init__(self, job: str, start: Callable[[], Process]) -> None:
        self.job = job
        self._start = start
        self._process = start()

    def strike(self, chance: random.Random) -> int:
        self.close()
        self._require(-signal.SIGKILL)
        self._process = self._start()
        return 1

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.send(signal.SIGKILL)
        self._process.wait()

    def _require(self, code: int) -> None:
        found = self._process.exit_code
        if found != code:
            end = "lives" if found is None else f"ended by {describe_exit(found)}"
            raise RuntimeError(f"the {self.job} {end}:\n{self._process.tail()}")


class Coordinator(Program):
    """A program that schedules functions.

    Args:
        start: Starts it.
    """

    def __init__(self, start: Callable[[], Process]) -> None:
        super().__init__("coordinator", start)

    def finish(self, seconds: float) -> None:
        """Wait until it has ended by itself.

        Raises:
            TimeoutError: It does not end.
            RuntimeError: It failed.
        """
        if not self._process.wait(seconds):
            raise TimeoutError(f"the coordinator has not ended after {seconds:g} s")
        self._require(0)
