"""What each consistency means for the steps of a group, and which of them each step has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from google.protobuf.json_format import MessageToDict, ParseDict

from stratagem_proto.consistency import name_of
from stratagem_proto.protocol import check_contributors
from stratagem_proto.v1.consistency_pb2 import Consistency


@dataclass(frozen=True)
class StepRule:
    """The rule of a consistency: when workers wait, and which steps they skip.

    The methods of this class are those of asynchronous updates, for which nobody waits.

    Attributes:
        message: The consistency as a message.
    """

    message: Consistency

    closes_steps: ClassVar[bool] = False
    """Whether workers contribute to one update per step, which then takes no more contributions."""

    @property
    def described(self) -> str:
        """The name of the consistency for messages: "async", "bounded(2)", "sync"."""
        return name_of(self.message)

    def check(self, num_workers: int) -> None:
        """Raise InvalidArgumentError if the steps need the contributions of more workers."""

    def holds_back(self, ahead: int) -> bool:
        """Return whether a worker that is so many steps ahead of the slowest has to wait."""
        return False

    def last_skipped(self, closed: int, otherwise: int) -> int:
        """Return the last step that a worker skips.

        Args:
            closed: The newest step that takes no more contributions.
            otherwise: The last step to skip if steps do not close.
        """
        return otherwise

    def regained(self, finished: int, closed: int, start: int) -> int:
        """Return the last step that a worker need not repeat after it was started again.

        Args:
            finished: The last step that it had finished.
            closed: The newest step that takes no more contributions.
            start: The first step that has this consistency.
        """
        return finished


class AsyncRule(StepRule):
    """Updates are applied when they arrive, and nobody waits."""


class BoundedRule(StepRule):
    """Updates are applied when they arrive, and fast workers wait for slow ones."""

    @property
    def described(self) -> str:
        return f"{name_of(self.message)}({self.message.bound})"

    def holds_back(self, ahead: int) -> bool:
        return ahead > self.message.bound


class SyncRule(StepRule):
    """All workers, or enough of them, contribute to one update per step."""

    closes_steps = True

    @property
    def described(self) -> str:
        enough = self.message.replicas_to_aggregate
        return f"{name_of(self.message)}({enough})" if enough else name_of(self.message)

    def check(self, num_workers: int) -> None:
        check_contributors(self.message.replicas_to_aggregate, num_workers)

    def last_skipped(self, closed: int, otherwise: int) -> int:
        return closed

    def regained(self, finished: int, closed: int, start: int) -> int:
        # Contributions to steps that are not closed may be lost.
        return min(finished, max(closed, start - 1))


_RULES: Mapping[str, type[StepRule]] = {
    "async": AsyncRule,
    "bounded": BoundedRule,
    "sync": SyncRule,
}


def rule_of(message: Consistency) -> StepRule:
    """Return the rule of a consistency; raise InvalidArgumentError if its mode is unknown."""
    return _RULES[name_of(message)](message)


@dataclass(frozen=True)
class Phase:
    """Consecutive steps of one consistency, up to the start of the next phase."""

    start: int
    rule: StepRule


class Schedule:
    """The phases of a group, in their order.

    A step has the same consistency for all workers, because a change begins with a step that no
    worker has begun.
    """

    def __init__(self, rule: StepRule) -> None:
        self._phases = [Phase(1, rule)]

    @classmethod
    def from_facts(cls, facts: Sequence[tuple[int, dict[str, Any]]]) -> Schedule:
        phases = [Phase(start, rule_from_json(item)) for start, item in facts]
        schedule = cls(phases[0].rule)
        schedule._phases = phases
        return schedule

    def facts(self) -> list[tuple[int, dict[str, Any]]]:
        return [(phase.start, rule_to_json(phase.rule)) for phase in self._phases]

    @property
    def newest(self) -> Phase:
        return self._phases[-1]

    def at(self, step: int) -> Phase:
        return self._phases[self._index(step)]

    def _index(self, step: int) -> int:
        later = len(self._phases) - 1
        while later and self._phases[later].start > step:
            later -= 1
        return later

    def following(self, finished: int, closed: int, level: int = 0) -> int:
        """Return the step that a worker takes next.

        The worker skips synchronous steps that are closed. It also skips steps of other modes whose
        phase is over, and those up to `level`.
        """
        while True:
            index = self._index(finished + 1)
            later = self._phases[index + 1 : index + 2]
            otherwise = later[0].start - 1 if later else level
            last = self._phases[index].rule.last_skipped(closed, otherwise)
            if last <= finished:
                return finished + 1
            finished = last

    def regained(self, finished: int, closed: int, level: int) -> int:
        """Return the last step that a worker need not repeat after it was started again.

        Its contribution to a synchronous step that is not closed may be lost.
        """
        phase = self.at(finished)
        finished = phase.rule.regained(finished, closed, phase.start)
        return self.following(finished, closed, level) - 1

    def change(self, rule: StepRule, begun: int) -> int:
        """Begin a phase after the last step that was begun.

        Returns:
            The first step of the phase; if the newest phase has this rule already, its first step.
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
        """Drop the phases that are over for all workers, of which the newest is never one."""
        if len(self._phases) > 1:
            del self._phases[: self._index(finished + 1)]


def rule_to_json(rule: StepRule) -> dict[str, Any]:
    return MessageToDict(rule.message, preserving_proto_field_name=True)


def rule_from_json(item: dict[str, Any]) -> StepRule:
    return rule_of(ParseDict(item, Consistency()))
