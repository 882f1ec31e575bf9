"""Faults that have requests applied twice, or late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_psserver.data_ledgers import DataLedger, Function
from stratagem_psserver.exactly_once.closures import ClosureLedger
from stratagem_psserver.exactly_once.counted_steps import CountedSteps
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.numbering import Admission, Apply, Numbering, WaitForEarlier
from stratagem_psserver.exactly_once.sessions import Fence, Session
from tests.simulation.planted.plant import Plant, replaced, strikes

_admit = Numbering.admit
_draw = DataLedger.draw
_finish = Numbering.finish
_open = SessionLedger.open
_outcome = Numbering.outcome
_positions = CountedSteps.positions
_record_mutation = ClosureLedger.finish


def _forgets_reply(self: Numbering, reply: RecordedReply | None) -> None:
    """Note that a request was applied, and now and then not what was answered."""
    _finish(self, None if strikes() else reply)


def _records_late(self: Numbering, reply: RecordedReply | None) -> None:
    """Record a reply only when the next one comes."""
    late: RecordedReply | None = self.__dict__.pop("late", None)
    self.__dict__["late"] = reply
    _finish(self, late)


def _loses_numbering(self: SessionLedger, *arguments: Any) -> Any:
    """Resume a session without what is known of its requests."""
    session = _open(self, *arguments)
    session.numbering = Numbering()
    return session


def _takes_stale_acknowledgement(self: Numbering, key: RequestKey) -> Any:
    """Go back to what a late request says was acknowledged."""
    self.acknowledged = min(self.acknowledged, key.acknowledged)
    return _outcome(self, key)


def _applies_out_of_turn(self: Numbering, key: RequestKey) -> Admission:
    """Let requests overtake each other."""
    decided = _admit(self, key)
    if isinstance(decided, WaitForEarlier) and self._applying is None:
        self._applying = key.sequence
        return Apply()
    return decided


def _forgets_mutation(self: ClosureLedger, key: Any, intent: Any, reply: Any, user: Any) -> None:
    """Do not know a function again that runs on another worker."""
    _record_mutation(self, key, intent, None, user)


def _hands_out_again(self: DataLedger, number: int, function: Function) -> int | None:
    """Draw a batch, and leave it for the next function now and then."""
    batch = _draw(self, number, function)
    if batch is not None and strikes():
        self.passes[number].drawn -= 1
    return batch


def _replaces_nobody(self: Fence, session: Session) -> bytes:
    """Let the former process of a task act beside the next one."""
    return b""


async def _repeats_step(
    self: CountedSteps,
    session: Session,
    request: Any,
    apply: Callable[[], Awaitable[Any]],
    response_type: Any,
) -> Any:
    """Apply what a process repeats that was started again."""
    self.begin(session, request)
    return await apply()


def _knows_first_step(self: CountedSteps, label: str) -> Any:
    """Have a task go on from an earlier step than the one that it had begun."""
    return _positions(self, label)[:1] if strikes() else _positions(self, label)


FAULTS: Mapping[str, Plant] = {
    "a reply is not recorded": replaced(Numbering, "finish", _forgets_reply),
    "a reply is recorded too late": replaced(Numbering, "finish", _records_late),
    "the ledger of a session is lost": replaced(SessionLedger, "open", _loses_numbering),
    "a stale acknowledgement counts": replaced(Numbering, "outcome", _takes_stale_acknowledgement),
    "a former process goes on": replaced(Fence, "replaced_by", _replaces_nobody),
    "requests overtake each other": replaced(Numbering, "admit", _applies_out_of_turn),
    "a function's mutation is forgotten": replaced(ClosureLedger, "finish", _forgets_mutation),
    "a counted step is applied again": replaced(CountedSteps, "once", _repeats_step),
    "the last counted step is forgotten": replaced(CountedSteps, "positions", _knows_first_step),
    "a batch is handed out twice": replaced(DataLedger, "draw", _hands_out_again),
}
