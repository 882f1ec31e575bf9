"""Faults that happen to a cluster, one every few seconds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from benchmarks.chaos.strikes import Kind, Strike

_STEPS_BETWEEN = 10


class Fault(NamedTuple):
    """Something that went wrong.

    Attributes:
        moment: When, in seconds.
        kind: What.
        victim: With whom.
    """

    moment: float
    kind: str
    victim: str


class Faults:
    """Lets faults happen, and undoes each after its time.

    A task has its next fault once the last one is undone and some steps were taken since then: a
    request that was under way when two primaries ended is not sent again, by intention.

    Args:
        kinds: What can go wrong.
        chance: Draws what goes wrong.
        every: Seconds between two faults.
        steps: Returns how many steps were taken so far.

    Attributes:
        happened: What went wrong so far.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        chance: random.Random,
        every: float,
        steps: Callable[[], int],
    ) -> None:
        self.happened: list[Fault] = []
        self._kinds, self._chance, self._every, self._steps = kinds, chance, every, steps
        # How many steps there were when the last fault of a task was undone.
        self._repairs: dict[str, Future[int]] = {}
        self._is_over = threading.Event()

    def run(self) -> None:
        """Let something go wrong every few seconds until `end`, then undo all.

        Raises:
            Exception: A process could not be started again.
        """
        with ThreadPoolExecutor() as self._threads:
            while not self._is_over.wait(self._every):
                self._strike()
        for repair in self._repairs.values():
            repair.result()

    def end(self) -> None:
        """Let nothing more go wrong."""
        self._is_over.set()

    def _strike(self) -> None:
        chances = [(kind, task) for kind in self._kinds for task in kind.tasks]
        self._chance.shuffle(chances)
        # So a short run has all kinds.
        counted = Counter(fault.kind for fault in self.happened)
        chances.sort(key=lambda each: counted[each[0].name])
        for kind, task in chances:
            if not self._is_whole(task):
                continue
            moment = time.monotonic()
            if struck := kind.strike(task, self._chance):
                self.happened.append(Fault(moment, kind.name, struck.victim))
                self._repairs[task] = self._threads.submit(self._undo, struck)
                return

    def _undo(self, struck: Strike) -> int:
        struck.repair(self._is_over)
        return self._steps()

    def _is_whole(self, task: str) -> bool:
        """Return whether a task may have a fault; raise what has kept the last one from its end."""
        repair = self._repairs.get(task)
        if repair is None or not repair.done():
            return repair is None
        return self._steps() >= repair.result() + _STEPS_BETWEEN
