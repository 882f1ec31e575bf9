"""How far a worker has come in the steps that all workers take together."""

from __future__ import annotations

from stratagem_proto.v1.parameter_server_pb2 import StepMark


class StepMarks:
    """The last committed step of each optimizer. Empty without synchronous steps."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def next(self, optimizer: str) -> StepMark:
        """Return the mark of the step that comes after the last committed one."""
        return StepMark(group=optimizer, step=self._last.get(optimizer, 0) + 1)

    def commit(self, mark: StepMark) -> None:
        """Note that this worker's part of a step counts."""
        self._last[mark.group] = mark.step

    def last(self, optimizer: str) -> StepMark | None:
        """Return the last committed step of an optimizer, None if there is none."""
        step = self._last.get(optimizer)
        return None if step is None else StepMark(group=optimizer, step=step)

    def committed(self) -> list[StepMark]:
        """Return the marks that what is read next has to come after."""
        return [StepMark(group=group, step=step) for group, step in self._last.items()]
