"""Closed steps that wait until the norm of all servers' gradients is known.

Each server has some of a step's gradients, and so a share of the sum of their squares. A worker
asks all servers for their shares and sends the norm to each, which then applies the step. Several
workers may do so; they send the same norm, because the shares do not change. A step is finished on
all servers before a worker finishes the next one, so each server keeps the share of the step that
it finished last, for workers that finish it on other servers.
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
    """The sum of the contributions to a step.

    Attributes:
        parts: The contributions, in worker order; their tensors have been consumed.
        gradients: The reduced gradients, within all limits except that of the norm.
        share: This server's share of the step, for the workers that compute the norm.
        orphaned: Whether a session of a contributor has ended, which might have finished the step.
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
    """The closed steps of one group.

    Attributes:
        last: The share of the step that was finished last, and the norm that it was finished with.
    """

    last: tuple[pb.ClosedStep, pb.GlobalNorm] = field(
        default_factory=lambda: (pb.ClosedStep(), pb.GlobalNorm())
    )
    _waiting: dict[int, ClosedStep] = field(default_factory=dict)

    def add(self, closed: ClosedStep) -> None:
        self._waiting[closed.share.step] = closed

    @property
    def has_waiting(self) -> bool:
        """Whether a step waits to be finished."""
        return bool(self._waiting)

    def find(self, step: int) -> ClosedStep | None:
        """Return a step that waits to be finished, or None."""
        return self._waiting.get(step)

    def shares(self, up_to: int) -> list[pb.ClosedStep]:
        """Return this server's shares of the last finished step and of those that wait."""
        waiting = [self._waiting[step].share for step in sorted(self._waiting)]
        last = [self.last[0]] if self.last[0].step else []
        return [share for share in (*last, *waiting) if share.step <= up_to]

    def take(self, step: int, norm: pb.GlobalNorm) -> ClosedStep | None:
        """Take out a step to be applied; return None if it was taken before.

        Raises:
            InvalidArgumentError: It was taken with another norm.
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
        """Return whether a step up to this one is orphaned, so that it may never be finished."""
        waiting = self._waiting.items()
        return any(one.orphaned for number, one in waiting if number <= step)

    def awaits(self, step: int) -> bool:
        """Return whether a step up to this one waits to be finished."""
        return min(self._waiting, default=step + 1) <= step


def _bytes(norm: pb.GlobalNorm) -> bytes:
    # Two NaNs are equal as bytes, but not as numbers.
    return norm.SerializeToString()
