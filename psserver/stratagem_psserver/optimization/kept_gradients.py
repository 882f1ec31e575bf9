"""Gradients that come while their backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stratagem_proto.errors import AbortedError, InvalidArgumentError
from stratagem_proto.protocol import check_name
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from stratagem_psserver.limits.budget import Reservation
from stratagem_psserver.optimization.gradients import Gradient

# More than any sane program has; without an end they would fill the memory.
MAX_PASSES = 10_000


@dataclass
class Kept:
    """What has come of one pass.

    Attributes:
        number: The client's number of the pass.
        reservation: The bytes that the gradients occupy.
        gradients: By variable, in the order in which they came.
    """

    number: int
    reservation: Reservation
    gradients: dict[str, Gradient] = field(default_factory=dict)


class KeptGradients:
    """One pass at most for each session and optimizer."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str], Kept] = {}

    def keep(
        self,
        session_id: bytes,
        backward: BackwardPass,
        gradients: Sequence[Gradient],
        reservation: Reservation,
    ) -> None:
        """Add gradients to those of a pass; drop those of an earlier one.

        Raises:
            InvalidArgumentError: A variable has one already, or there are too many passes.
        """
        check_name(backward.optimizer, "optimizer")
        key = (session_id, backward.optimizer)
        kept = self._kept.get(key)
        if kept is None or kept.number != backward.number:
            self.drop(session_id, backward)
            if len(self._kept) >= MAX_PASSES:
                raise InvalidArgumentError(
                    f"this server keeps gradients of {MAX_PASSES} backward passes, "
                    "which is the most; give an optimizer the same name in each step"
                )
            kept = self._kept[key] = Kept(backward.number, reservation.hand_over())
        else:
            require_distinct(gradients, kept.gradients)
            kept.reservation.absorb(reservation)
        kept.gradients |= {gradient.variable: gradient for gradient in gradients}

    def of(self, session_id: bytes, backward: BackwardPass) -> Kept:
        """Return what has come of a pass; `drop` it once it is used.

        Raises:
            AbortedError: The pass is not known, or no longer.
        """
        kept = self._kept.get((session_id, backward.optimizer))
        if kept is None or kept.number != backward.number:
            raise AbortedError(
                f"what has come of backward pass {backward.number} of "
                f"{backward.optimizer!r} is gone, because the lease of its session ran "
                "out meanwhile; compute the gradients again"
            )
        return kept

    def drop(self, session_id: bytes, backward: BackwardPass) -> None:
        """Forget what has come for an optimizer; nothing if nothing has."""
        kept = self._kept.pop((session_id, backward.optimizer), None)
        if kept is not None:
            kept.reservation.release()

    def session_ended(self, session_id: bytes) -> None:
        """Forget what a session has sent."""
        for key in [key for key in self._kept if key[0] == session_id]:
            self._kept.pop(key).reservation.release()


def require_distinct(gradients: Sequence[Gradient], kept: dict[str, Gradient]) -> None:
    """Check that variables have no gradient in a pass yet.

    Raises:
        InvalidArgumentError: One has.
    """
    for gradient in gradients:
        if gradient.variable in kept:
            raise InvalidArgumentError(
                f"{gradient.variable!r} has a gradient in this backward pass already; "
                "send each once",
                variable=gradient.variable,
            )
