"""Which consistency holds for which steps of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from stratagem_proto.v1.consistency_pb2 import Consistency
from stratagem_psserver.consistency.rules import StepRule, rule_of


@dataclass(frozen=True)
class Phase:
    """Steps of one consistency, up to the start of the next phase."""

    start: int
    rule: StepRule


class Schedule:
    """The phases of a group, one after the other.

    A step has one consistency, whichever worker takes it, because a change begins with a step that
    nobody has begun.
    """

    def __init__(self, rule: StepRule) -> None:
        self._phases = [Phase(1, rule)]

    @classmethod
    def of_facts(cls, facts: Sequence[tuple[int, dict[str, Any]]]) -> Schedule:
        """The schedule that has said so."""
        phases = [Phase(start, from_json(item)) for start, item in facts]
        schedule = cls(phases[0].rule)
        schedule._phases = phases
        return schedule

    def facts(self) -> list[tuple[int, dict[str, Any]]]:
        """The phases, as JSON has them."""
        return [(phase.start, to_json(phase.rule)) for phase in self._phases]

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
            The next step, unless it is synchronous and closed, or not synchronous and up to `level`
            or of a phase that is over: then the first after those.
        """
        while (last := self._last_left_out(finished + 1, closed, level)) > finished:
            finished = last
        return finished + 1

    def _last_left_out(self, step: int, closed: int, level: int) -> int:
        index = self._index(step)
        later = self._phases[index + 1 : index + 2]
        otherwise = later[0].start - 1 if later else level
        return self._phases[index].rule.last_left_out(closed, otherwise)

    def regained(self, finished: int, closed: int, level: int) -> int:
        """The last step that a worker does not repeat that was started again.

        It may have lost a synchronous contribution that did not count yet.

        Args:
            finished: The last one that it had finished.
            closed: As in `following`.
            level: As in `following`.
        """
        phase = self.at(finished)
        finished = phase.rule.regained(finished, closed, phase.start)
        return self.following(finished, closed, level) - 1

    def change(self, rule: StepRule, begun: int) -> int:
        """Begin a phase after all steps that were begun.

        Returns:
            Its first step; that of the newest phase if it has this rule.
        """
        if self.newest.rule == rule:
            return self.newest.start
        start = max(begun + 1, self.newest.start)
        if start == self.newest.start:
            self._phases.pop()
        if not self._phases or self.newest.rule != rule:
            self._phases.append(Phase(start, rule))
        return self.newest.start

    def forget(self, finished: int) -> None:
        """Drops the phases that are over for all workers."""
        del self._phases[: self._index(finished + 1)]


def to_json(rule: StepRule) -> dict[str, Any]:
    """Return a rule as JSON has it."""
    return MessageToDict(rule.message, preserving_proto_field_name=True)


def from_json(item: dict[str, Any]) -> StepRule:
    """Return the rule that became that in JSON."""
    return rule_of(ParseDict(item, Consistency()))
