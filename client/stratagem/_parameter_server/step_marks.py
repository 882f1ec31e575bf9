"""How far a worker has come in the steps that all workers take together."""

from __future__ import annotations

from collections.abc import Callable

from stratagem_proto.v1.parameter_server_pb2 import StepMark


class StepMarks:
    """The last committed step of each optimizer. Empty without synchronous steps."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def next(self, optimizer: str, is_applied: Callable[[StepMark], bool]) -> StepMark:
        """Return the mark of the step that comes after the last committed one.

        Args:
            optimizer: Name of the optimizer.
            is_applied: Asks the servers about a step. The first step of a task that
                was started again comes after those that they have applied.
        """
        if optimizer not in self._last:
            self._last[optimizer] = _count_applied(optimizer, is_applied)
        return StepMark(group=optimizer, step=self._last[optimizer] + 1)

    def commit(self, mark: StepMark) -> None:
        """Note that this worker's part of a step counts."""
        self._last[mark.group] = mark.step

    def last(self, optimizer: str) -> StepMark | None:
        """Return the last committed step of an optimizer, None if there is none."""
        step = self._last.get(optimizer, 0)
        return StepMark(group=optimizer, step=step) if step else None

    def committed(self) -> list[StepMark]:
        """Return the marks that what is read next has to come after."""
        return [mark for mark in map(self.last, self._last) if mark is not None]


def _count_applied(optimizer: str, is_applied: Callable[[StepMark], bool]) -> int:
    """The number of applied steps, by bisection; a new program asks once."""

    def reaches(step: int) -> bool:
        return is_applied(StepMark(group=optimizer, step=step))

    low, high = 0, 1
    while reaches(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reaches(middle) else (low, middle)
    return low
