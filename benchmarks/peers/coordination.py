"""What coordinators of any kind are measured by."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from benchmarks.harness.processor_time import processor_seconds
from benchmarks.peers.process import Measure

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


def measures(
    coordinator: Coordinator, closures: Mapping[str, Closure]
) -> dict[str, Measure]:
    """What can be measured: "rate", "cost" and "round trip" of each closure."""
    kinds = {"rate": _rate, "cost": _cost, "round trip": _round_trip}
    return {
        f"{kind} {name}": partial(measure, coordinator, closure)
        for kind, measure in kinds.items()
        for name, closure in closures.items()
    }


def _rate(coordinator: Coordinator, closure: Closure, seconds: float) -> float:
    """Closures per second, from the first `schedule` until `join` has returned."""
    count = _FIRST_COUNT
    while (elapsed := _scheduled(coordinator, closure, count)) < seconds:
        count = math.ceil(count * min(1.1 * seconds / elapsed, 10))
    return count / elapsed


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
    trips: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        coordinator.fetch(coordinator.schedule(closure))
        trips.append(time.perf_counter() - start)
    return statistics.median(trips)
