"""Closed steps that wait until the norm of all servers' gradients is known.

Each server has a part of a step's gradients, and so of the sum of their squares. A worker that has
asked all servers for their parts tells each the norm, which has the step applied. Several may do
so; they say the same, because the parts stay what they were. A step is finished everywhere before
anyone finishes the next, so that a server that has finished a step can still say its part to who
finishes it elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.v1 import closed_step_pb2 as pb
from stratagem_psserver.optimization.gradients import Gradient
from stratagem_psserver.synchronous.contributions import Part


@dataclass
class ClosedStep:
    """What the contributions to a step came to.

    Attributes:
        parts: The contributions, in worker order; their tensors are used up.
        gradients: Reduced, and within all limits but that of the norm.
        share: What other servers need of it.
        orphaned: Whether a session has ended that may have been about to finish it.
    """

    parts: Sequence[Part]
    gradients: Sequence[Gradient]
    share: pb.ClosedStep
    orphaned: bool = False

    @property
    def variables(self) -> list[str]:
        return [gradient.variable for gradient in self.gradients]


@dataclass
class ClosedSteps:
    """Those of one group.

    Attributes:
        last: The last one that was taken, and the norm that came with that.
    """

    last: tuple[pb.ClosedStep, pb.GlobalNorm] = field(
        default_factory=lambda: (pb.ClosedStep(), pb.GlobalNorm())
    )
    _waiting: dict[int, ClosedStep] = field(default_factory=dict)

    def add(self, closed: ClosedStep) -> None:
        self._waiting[closed.share.step] = closed

    def find(self, step: int) -> ClosedStep | None:
        """A step that waits."""
        return self._waiting.get(step)

    def shares(self, up_to: int) -> list[pb.ClosedStep]:
        """What this server has of the last step that was taken, and of those after."""
        waiting = [self._waiting[step].share for step in sorted(self._waiting)]
        last = [self.last[0]] if self.last[0].step else []
        return [share for share in (*last, *waiting) if share.step <= up_to]

    def take(self, step: int, norm: pb.GlobalNorm) -> ClosedStep | None:
        """Take a step out to be applied; None if that was done before.

        Raises:
            InvalidArgumentError: It was done with another norm.
            FailedPreconditionError: An earlier step waits, or this one is not closed.
        """
        last, known = self.last
        if step == last.step and _bytes(norm) != _bytes(known):
            raise InvalidArgumentError(
                f"step {step} was finished with the norm {known.value}, not "
                f"{norm.value}; the norm is that of all servers' gradients"
            )
        if step <= last.step:
            return None
        if step not in self._waiting or step > min(self._waiting):
            raise FailedPreconditionError(
                f"step {step} cannot be finished: {self._next()}; finish steps in "
                "their order, each once it is closed on all servers"
            )
        closed = self._waiting.pop(step)
        share = pb.ClosedStep()
        share.CopyFrom(closed.share)
        share.finished = True
        self.last = share, norm
        return closed

    def _next(self) -> str:
        if not self._waiting:
            return "no step waits for that"
        return f"step {min(self._waiting)} is the next"

    def session_ended(self, session_id: bytes) -> None:
        """Note that a session will finish no step."""
        for closed in self._waiting.values():
            ended = any(part.session_id == session_id for part in closed.parts)
            closed.orphaned = closed.orphaned or ended

    def is_orphaned(self, step: int) -> bool:
        """Whether a step, or one before it, waits for a session that has ended."""
        waiting = self._waiting.items()
        return any(one.orphaned for number, one in waiting if number <= step)

    def awaits(self, step: int) -> bool:
        """Return whether a step, or one before it, waits to be finished."""
        return min(self._waiting, default=step + 1) <= step


def _bytes(norm: pb.GlobalNorm) -> bytes:
    # Unlike numbers, these are equal if both are NaN.
    return norm.SerializeToString()
