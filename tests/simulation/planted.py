"""Faults of a server, planted into the real code, which the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_psserver.consistency.barrier import Barriers
from stratagem_psserver.consistency.rules import BoundedRule
from stratagem_psserver.exactly_once.ledger import Admission, Apply, Numbering, SessionLedger
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.rounds import Rounds

Plant = Callable[[], AbstractContextManager[object]]


def _replaced(owner: type, name: str, value: object) -> Plant:
    return lambda: patch.object(owner, name, value)


_finish, _outcome, _admit = Numbering.finish, Numbering.outcome, Numbering.admit
_open, _close_session = SessionLedger.open, ServerState.close_session


def _forgets_replies(self: Numbering, reply: RecordedReply | None) -> None:
    """Note that a request was applied, and not what was answered."""
    _finish(self, None)


def _late_reply(self: Numbering, reply: RecordedReply | None) -> None:
    """Record a reply only once the next request comes."""
    late: RecordedReply | None = self.__dict__.pop("late", None)
    self.__dict__["late"] = reply
    _finish(self, late)


def _loses_numbering(self: SessionLedger, *arguments: Any) -> Any:
    """Resume a session without what is known of its requests."""
    session = _open(self, *arguments)
    session.numbering = Numbering()
    return session


def _takes_stale_acknowledgements(self: Numbering, key: RequestKey) -> Any:
    """Take a request for one that nobody has acknowledged, whatever was said before."""
    self.acknowledged = min(self.acknowledged, key.acknowledged)
    return _outcome(self, key)


def _applies_out_of_turn(self: Numbering, key: RequestKey) -> Admission:
    """Let requests overtake each other."""
    decided = _admit(self, key)
    if type(decided).__name__ == "WaitForEarlier" and self._applying is None:
        self._applying = key.sequence
        return Apply()
    return decided


def _bound_off_by_one(self: BoundedRule, ahead: int) -> bool:
    return ahead > self.message.bound + 1


def _forgotten_barrier(self: Barriers, name: str, generation: int, session_id: bytes) -> bool:
    """Let everybody pass who has arrived."""
    return True


def _drops_nothing(self: Rounds, session_id: bytes, mark: Any) -> bool:
    return False


def _reads_at_once(self: Rounds, mark: Any) -> bool:
    """Let reads of synchronous steps wait for nobody."""
    return True


PLANTED: Mapping[str, Plant] = {
    "a reply is not recorded": _replaced(Numbering, "finish", _forgets_replies),
    "a reply is recorded too late": _replaced(Numbering, "finish", _late_reply),
    "the ledger of a session is lost": _replaced(SessionLedger, "open", _loses_numbering),
    "a stale acknowledgement": _replaced(Numbering, "outcome", _takes_stale_acknowledgements),
    "requests overtake each other": _replaced(Numbering, "admit", _applies_out_of_turn),
    "a bound is off by one": _replaced(BoundedRule, "holds_back", _bound_off_by_one),
    "a barrier is forgotten": _replaced(Barriers, "is_passed", _forgotten_barrier),
    "reads do not wait for their step": _replaced(Rounds, "is_applied", _reads_at_once),
}
