"""The workers and the coordinator as those who can be hurt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.launcher import START_SECONDS
from benchmarks.chaos.roles import Victim, victim_of

_POLL_SECONDS = 0.1


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

        return victim_of(worker, f"worker-{index}", revive)


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
