"""What coordinators of any kind are measured by."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from benchmarks.peers.process import Answer
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.timing import median

_FIRST_COUNT = 50

Closure = Callable[[], Any]


class Coordinator(Protocol):
    """A `ClusterCoordinator`, whoever made it."""

    def schedule(self, fn: Closure) -> Any:
        """Lets a worker run a function."""

    def fetch(self, val: Any) -> Any:
        """Waits for what a function returned."""

    def join(self) -> None:
        """Waits until all functions have ended."""


def answers(coordinator: Coordinator, closures: Mapping[str, Closure]) -> Answer:
    """Answers for "rate", "cost" and "trip" of each closure, such as "rate nothing".

    All are seconds for one closure.
    """
    kinds = {"rate": _rate, "cost": _cost, "trip": _round_trip}

    def answer(question: str, seconds: float) -> float:
        kind, name = question.split()
        return kinds[kind](coordinator, closures[name], seconds)

    return answer


def _rate(coordinator: Coordinator, closure: Closure, seconds: float) -> float:
    """Seconds from the first `schedule` until `join` has returned, for one closure."""
    count = _FIRST_COUNT
    while (elapsed := _scheduled(coordinator, closure, count)) < seconds:
        count = math.ceil(count * min(1.1 * seconds / elapsed, 10))
    return elapsed / count


def _cost(coordinator: Coordinator, closure: Closure, seconds: float) -> float:
    """Seconds of processors, of all processes of the cluster, for one closure."""
    count = ended = _FIRST_COUNT
    used = processor_seconds(os.getpid())
    start = time.perf_counter()
    _scheduled(coordinator, closure, count)
    while time.perf_counter() - start < seconds:
        _scheduled(coordinator, closure, count)
        ended += count
        count *= 2
    return (processor_seconds(os.getpid()) - used) / ended


def _scheduled(coordinator: Coordinator, closure: Closure, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        coordinator.schedule(closure)
    coordinator.join()
    return time.perf_counter() - start


def _round_trip(coordinator: Coordinator, closure: Closure, seconds: float) -> float:
    """Median of the seconds from `schedule` until `fetch` has returned."""
    return median(lambda: coordinator.fetch(coordinator.schedule(closure)), seconds)
