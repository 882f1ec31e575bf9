"""How long something takes, repeated for a while."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

_TAIL = 0.99


def durations(run: Callable[[], object], seconds: float) -> Sequence[float]:
    """Seconds of each call, of which there is at least one; in ascending order."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return sorted(found)


def median(run: Callable[[], object], seconds: float) -> float:
    """The median of the seconds of a call."""
    return statistics.median(durations(run, seconds))


def tail(run: Callable[[], object], seconds: float) -> float:
    """The seconds that 99 of 100 calls stay below."""
    found = durations(run, seconds)
    return found[int(_TAIL * len(found))]


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    """What calls it so many times."""

    def repeat() -> None:
        for _ in range(times):
            run()

    return repeat


def answering(run: Callable[[], object], each: int = 1) -> Callable[[str, float], float]:
    """What answers any question by the median of the seconds of a call.

    Args:
        run: What is called.
        each: How many steps a call takes; the answer is for one.
    """
    return lambda _, seconds: median(run, seconds) / each
