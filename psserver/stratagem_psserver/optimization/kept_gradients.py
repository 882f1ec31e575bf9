"""Gradients that arrive during their backward pass and are kept until it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stratagem_proto.errors import AbortedError, InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.protocol import check_name
from stratagem_proto.shares import is_used_up
from stratagem_proto.v1.update_program_pb2 import BackwardPass
from stratagem_psserver.limits import Reservation
from stratagem_psserver.optimization.gradients import Gradient

# No sensible program has as many; without a limit they would fill the memory.
MAX_PASSES = 10_000


@dataclass
class Kept:
    """The gradients of one backward pass that have arrived.

    Attributes:
        number: The client's number of the pass.
        reservation: The bytes of the budget that the gradients occupy.
        gradients: The gradients by variable, in the order of their arrival.
        records: The positions in the log of the requests that brought them.
    """

    number: int
    reservation: Reservation
    gradients: dict[str, Gradient] = field(default_factory=dict)
    records: list[int] = field(default_factory=list)


class KeptGradients:
    """The kept gradients of all sessions, of at most one pass for each session and optimizer."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str], Kept] = {}

    def keep(
        self,
        session_id: bytes,
        backward: BackwardPass,
        gradients: Sequence[Gradient],
        reservation: Reservation,
        record: int = 0,
    ) -> None:
        """Add gradients to those of a pass; drop those of an earlier pass.

        Args:
            session_id: The session.
            backward: The pass.
            gradients: The gradients.
            reservation: Their bytes of the budget.
            record: The position in the log of the request that brought them.

        Raises:
            InvalidArgumentError: A variable has a gradient already.
            ResourceExhaustedError: Gradients of too many passes are kept for the session.
        """
        check_name(backward.optimizer, "optimizer")
        key = (session_id, backward.optimizer)
        kept = self._kept.get(key)
        if kept is None:
            self._require_room(session_id)
        if kept is None or kept.number != backward.number:
            self.drop(session_id, backward)
            kept = self._kept[key] = Kept(backward.number, reservation.hand_over())
        else:
            require_distinct(gradients, kept.gradients)
            kept.reservation.absorb(reservation)
        kept.records.append(record)
        kept.gradients |= {gradient.variable: gradient for gradient in gradients}

    def _require_room(self, session_id: bytes) -> None:
        def own() -> int:
            return sum(session == session_id for session, _ in self._kept)

        if is_used_up(MAX_PASSES, len(self._kept), own):
            raise ResourceExhaustedError(
                f"gradients of {own()} backward passes are kept for session "
                f"{session_id.hex()[:8]}, which is its share: three quarters of what others leave "
                f"of {MAX_PASSES}; give an optimizer the same name in each step"
            )

    def of(self, session_id: bytes, backward: BackwardPass) -> Kept:
        """Return the gradients of a pass; the caller calls `drop` once they are used.

        Raises:
            AbortedError: No gradients of the pass are kept, or no longer.
        """
        kept = self._kept.get((session_id, backward.optimizer))
        if kept is None or kept.number != backward.number:
            raise AbortedError(
                f"the gradients of backward pass {backward.number} of "
                f"{backward.optimizer!r} are gone, because the lease of the session ran "
                "out meanwhile; compute them again"
            )
        return kept

    def drop(self, session_id: bytes, backward: BackwardPass) -> None:
        """Drop the gradients that are kept for an optimizer, if any."""
        kept = self._kept.pop((session_id, backward.optimizer), None)
        if kept is not None:
            kept.reservation.release()

    def records(self) -> Iterator[int]:
        """Yield the positions in the log of the requests that brought what is kept."""
        for kept in self._kept.values():
            yield from kept.records

    def session_ended(self, session_id: bytes) -> None:
        """Drop the gradients that a session has sent."""
        for key in [key for key in self._kept if key[0] == session_id]:
            self._kept.pop(key).reservation.release()


def require_distinct(gradients: Sequence[Gradient], kept: dict[str, Gradient]) -> None:
    """Check that the variables of some gradients have none in a pass yet.

    Raises:
        InvalidArgumentError: A variable has one.
    """
    for gradient in gradients:
        if gradient.variable in kept:
            raise InvalidArgumentError(
                f"{gradient.variable!r} has a gradient in this backward pass already; "
                "send each once",
                variable=gradient.variable,
            )
