"""When workers take steps that differ in how long they take."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """A step of a worker.

    Attributes:
        begins: Seconds from the start.
        ends: Likewise.
    """

    begins: float
    ends: float


def schedule(durations: tuple[float, ...], ahead: int | None, last: float) -> list[list[Step]]:
    """Return the steps that each worker takes.

    Args:
        durations: Seconds of a step, of each worker.
        ahead: How many steps a worker may have finished more than the slowest when it begins one;
            None for any number.
        last: The second after which no step ends.
    """
    steps: list[list[Step]] = [[] for _ in durations]
    while free := [each for each in range(len(durations)) if _may_begin(steps, each, ahead)]:
        worker = min(free, key=lambda each: _ready(steps, each, ahead) + durations[each])
        begins = _ready(steps, worker, ahead)
        if begins + durations[worker] > last:
            return steps
        steps[worker].append(Step(begins, begins + durations[worker]))
    return steps


def _may_begin(steps: list[list[Step]], worker: int, ahead: int | None) -> bool:
    """Return whether the steps that a worker has to wait for are known."""
    return ahead is None or all(len(steps[worker]) - len(other) <= ahead for other in steps)


def _ready(steps: list[list[Step]], worker: int, ahead: int | None) -> float:
    """Return when a worker may begin its next step."""
    own = steps[worker][-1].ends if steps[worker] else 0.0
    if ahead is None or (needed := len(steps[worker]) - ahead) <= 0:
        return own
    return max(own, *(other[needed - 1].ends for other in steps))
