"""Which consistency holds for which steps of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from stratagem_proto.v1.consistency_pb2 import CONSISTENCY_MODE_SYNC, Consistency


@dataclass(frozen=True)
class Phase:
    """Steps of one consistency, up to the start of the next phase."""

    start: int
    consistency: Consistency

    @property
    def synchronous(self) -> bool:
        return self.consistency.mode == CONSISTENCY_MODE_SYNC


class Schedule:
    """The phases of a group, one after the other.

    A step has one consistency, whichever worker takes it, because a change begins
    with a step that nobody has begun.
    """

    def __init__(self, consistency: Consistency) -> None:
        self._phases = [Phase(1, consistency)]

    @classmethod
    def of_facts(cls, facts: Sequence[tuple[int, dict[str, Any]]]) -> Schedule:
        """The schedule that has said so."""
        phases = [Phase(start, from_json(item)) for start, item in facts]
        schedule = cls(phases[0].consistency)
        schedule._phases = phases
        return schedule

    def facts(self) -> list[tuple[int, dict[str, Any]]]:
        """The phases, as JSON has them."""
        return [(phase.start, to_json(phase.consistency)) for phase in self._phases]

    @property
    def newest(self) -> Phase:
        return self._phases[-1]

    def at(self, step: int) -> Phase:
        """The phase of a step."""
        return self._phases[self._index(step)]

    def _index(self, step: int) -> int:
        later = len(self._phases) - 1
        while later and self._phases[later].start > step:
            later -= 1
        return later

    def following(self, finished: int, closed: int, level: int = 0) -> int:
        """The step that a worker takes next.

        Args:
            finished: The last one that it has finished or left out.
            closed: The newest synchronous step that takes no more contributions.
            level: The last one to leave out among those that are not synchronous.

        Returns:
            The next step, unless it is synchronous and closed, or not synchronous and
            up to `level` or of a phase that is over: then the first after those.
        """
        while (last := self._last_left_out(finished + 1, closed, level)) > finished:
            finished = last
        return finished + 1

    def _last_left_out(self, step: int, closed: int, level: int) -> int:
        index = self._index(step)
        if self._phases[index].synchronous:
            return closed
        later = self._phases[index + 1 : index + 2]
        return later[0].start - 1 if later else level

    def regained(self, finished: int, closed: int, level: int) -> int:
        """The last step that a worker does not repeat that was started again.

        It may have lost a synchronous contribution that did not count yet.

        Args:
            finished: The last one that it had finished.
            closed: As in `following`.
            level: As in `following`.
        """
        phase = self.at(finished)
        if phase.synchronous:
            finished = min(finished, max(closed, phase.start - 1))
        return self.following(finished, closed, level) - 1

    def change(self, consistency: Consistency, begun: int) -> int:
        """Begins a phase after all steps that were begun.

        Returns:
            Its first step; that of the newest phase if it has this consistency.
        """
        if self.newest.consistency == consistency:
            return self.newest.start
        start = max(begun + 1, self.newest.start)
        if start == self.newest.start:
            self._phases.pop()
        if not self._phases or self.newest.consistency != consistency:
            self._phases.append(Phase(start, consistency))
        return self.newest.start

    def forget(self, finished: int) -> None:
        """Drops the phases that are over for all workers."""
        del self._phases[: self._index(finished + 1)]


def to_json(consistency: Consistency) -> dict[str, Any]:
    """A consistency as JSON has it."""
    return MessageToDict(consistency, preserving_proto_field_name=True)


def from_json(item: dict[str, Any]) -> Consistency:
    """The consistency that became that in JSON."""
    return ParseDict(item, Consistency())
