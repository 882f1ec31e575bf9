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
    """Who waits for whom, and which steps a worker leaves out.

    What is not overridden is as for updates that are applied when they come, for which nobody
    waits.

    Attributes:
        message: The consistency, as it travels.
    """

    message: Consistency

    closes_steps: ClassVar[bool] = False
    """Whether workers contribute to one update, which is closed once it is applied."""

    @property
    def described(self) -> str:
        """It, for messages: "async", "bounded(2)", "sync"."""
        return name_of(self.message)

    def check(self, num_workers: int) -> None:
        """Check that so many workers can have it.

        Raises:
            InvalidArgumentError: Its steps need more.
        """

    def holds_back(self, ahead: int) -> bool:
        """Return whether a worker has to wait that is so many steps ahead."""
        return False

    def last_left_out(self, closed: int, otherwise: int) -> int:
        """Return the last step that a worker leaves out.

        Args:
            closed: The newest step that takes no more contributions.
            otherwise: The last one that is over for other reasons.
        """
        return otherwise

    def regained(self, finished: int, closed: int, start: int) -> int:
        """Return the last step that counts of a worker that was started again.

        Args:
            finished: The last one that it had finished.
            closed: As in `last_left_out`.
            start: The first step that has this consistency.
        """
        return finished


class AsyncRule(StepRule):
    """Updates are applied when they come, and nobody waits."""


class BoundedRule(StepRule):
    """Updates are applied when they come, and the fast wait for the slow."""

    @property
    def described(self) -> str:
        return f"{name_of(self.message)}({self.message.bound})"

    def holds_back(self, ahead: int) -> bool:
        return ahead > self.message.bound


class SyncRule(StepRule):
    """All workers, or enough of them, contribute to one update."""

    closes_steps = True

    @property
    def described(self) -> str:
        enough = self.message.replicas_to_aggregate
        return f"{name_of(self.message)}({enough})" if enough else name_of(self.message)

    def check(self, num_workers: int) -> None:
        check_contributors(self.message.replicas_to_aggregate, num_workers)

    def last_left_out(self, closed: int, otherwise: int) -> int:
        return closed

    def regained(self, finished: int, closed: int, start: int) -> int:
        # A contribution that did not count yet may be lost.
        return min(finished, max(closed, start - 1))


_RULES: Mapping[str, type[StepRule]] = {
    "async": AsyncRule,
    "bounded": BoundedRule,
    "sync": SyncRule,
}


def rule_of(message: Consistency) -> StepRule:
    """Return what a consistency means.

    Raises:
        InvalidArgumentError: It has no mode that is known here.
    """
    return _RULES[name_of(message)](message)
