"""What each consistency means for the steps of a group: a class for each mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

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
        """Check that so many workers are enough.

        Raises:
            InvalidArgumentError: The steps need the contributions of more workers.
        """

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
    """Return the rule of a consistency.

    Raises:
        InvalidArgumentError: Its mode is unknown.
    """
    return _RULES[name_of(message)](message)
