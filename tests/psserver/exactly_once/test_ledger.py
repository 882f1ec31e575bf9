"""Exactly once, and how long a session lives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    ResourceExhaustedError,
    SessionLostError,
    SupersededError,
)
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, RequestKey, Task
from stratagem_proto.v1.succession_pb2 import Incumbent
from stratagem_psserver.exactly_once.ledger import MAX_REMEMBERED, MAX_SESSIONS, SessionLedger
from stratagem_psserver.exactly_once.numbering import (
    MAX_REPLY_BYTES,
    MAX_UNACKNOWLEDGED,
    Apply,
    Numbering,
    Refused,
    Replay,
    WaitForEarlier,
)
from stratagem_psserver.exactly_once.sessions import Session, Succession
from stratagem_rpc.shares import share_of

LEASE = 30.0


def key(sequence: int, acknowledged: int = 0) -> RequestKey:
    return RequestKey(sequence=sequence, acknowledged=acknowledged)


def applied(numbering: Numbering, sequence: int) -> None:
    assert isinstance(numbering.admit(key(sequence)), Apply)
    numbering.finish(RecordedReply(sequence=sequence, response=b"%d" % sequence))


@given(st.data())
def test_each_request_is_applied_once_and_in_order_whatever_arrives(
    data: st.DataObject,
) -> None:
    """A server "applies those of a session in order, each once"."""
    numbering, total, log = Numbering(), 6, []
    settled: set[int] = set()
    acknowledged = 0
    for _ in range(data.draw(st.integers(0, 60))):
        sequence = data.draw(st.integers(1, total))
        while acknowledged + 1 in settled and data.draw(st.booleans()):
            acknowledged += 1
        admission = numbering.admit(key(sequence, min(acknowledged, sequence - 1)))
        if isinstance(admission, Apply):
            log.append(sequence)
            numbering.finish(RecordedReply(sequence=sequence))
        if isinstance(admission, Replay):
            assert admission.reply.sequence == sequence
        if not isinstance(admission, WaitForEarlier):
            settled.add(sequence)
    for sequence in range(1, total + 1):
        if isinstance(numbering.admit(key(sequence)), Apply):
            log.append(sequence)
            numbering.finish(RecordedReply(sequence=sequence))
    assert log == list(range(1, total + 1))


def test_a_repetition_gets_the_recorded_reply() -> None:
    numbering = Numbering()
    applied(numbering, 1)
    assert numbering.admit(key(1)) == Replay(RecordedReply(sequence=1, response=b"1"))


def test_a_later_request_waits_for_the_one_before_it() -> None:
    assert Numbering().admit(key(3, 1)) == WaitForEarlier(2)


def test_a_repetition_waits_while_the_first_arrival_is_being_applied() -> None:
    numbering = Numbering()
    assert isinstance(numbering.admit(key(1)), Apply)
    assert numbering.admit(key(1)) == WaitForEarlier(1)
    assert numbering.admit(key(2)) == WaitForEarlier(1)


def test_a_successor_waits_even_if_its_client_gave_the_running_request_up() -> None:
    numbering = Numbering()
    assert isinstance(numbering.admit(key(1)), Apply)
    assert numbering.admit(key(2, 1)) == WaitForEarlier(1)
    numbering.finish(RecordedReply(sequence=1))
    assert isinstance(numbering.admit(key(2, 1)), Apply)


def test_an_acknowledged_number_that_was_not_applied_never_will_be() -> None:
    numbering = Numbering()
    assert isinstance(numbering.admit(key(4, 3)), Apply)
    numbering.finish(RecordedReply(sequence=4))
    refused = numbering.admit(key(2))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, FailedPreconditionError)


def test_a_passing_failure_leaves_the_number_free() -> None:
    numbering = Numbering()
    assert isinstance(numbering.admit(key(1)), Apply)
    numbering.finish(None)
    assert isinstance(numbering.admit(key(1)), Apply)


@pytest.mark.parametrize(("sequence", "acknowledged"), [(0, 0), (3, 3), (3, 7)])
def test_a_request_may_not_acknowledge_itself(sequence: int, acknowledged: int) -> None:
    refused = Numbering().admit(key(sequence, acknowledged))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, InvalidArgumentError)


def test_a_client_that_never_acknowledges_is_stopped() -> None:
    numbering = Numbering()
    for sequence in range(1, MAX_UNACKNOWLEDGED + 1):
        applied(numbering, sequence)
    assert isinstance(numbering.admit(key(MAX_UNACKNOWLEDGED + 1)), Refused)
    assert isinstance(numbering.admit(key(MAX_UNACKNOWLEDGED + 1, 1)), Apply)


def test_replies_that_are_never_acknowledged_may_take_only_so_much_memory() -> None:
    numbering = Numbering()
    numbering.admit(key(1))
    reply = RecordedReply(sequence=1, response=bytes(MAX_REPLY_BYTES))
    numbering.finish(reply)
    assert isinstance(numbering.admit(key(2)), Refused)
    assert isinstance(numbering.admit(key(2, 1)), Apply)


def opened(ledger: SessionLedger, number: int = 1, now: float = 0.0) -> Session:
    identifier = number.to_bytes(16, "big")
    return ledger.open(Session(identifier, ROLE_WORKER, Task(job="worker")), now)


def test_every_call_renews_the_lease() -> None:
    ledger = SessionLedger(LEASE)
    session = opened(ledger)
    ledger.session(session.id, now=20.0)
    assert ledger.expire(now=40.0) == []
    assert ledger.expire(now=50.0) == [session]


def test_a_session_whose_connection_was_closed_ends_unless_it_is_heard_of() -> None:
    ledger = SessionLedger(LEASE, reconnect_seconds=5.0)
    gone, back = opened(ledger, 1), opened(ledger, 2)
    for session in gone, back:
        ledger.hold_liveness_call(session.id)
        ledger.session(session.id, now=7.0)
        ledger.end_liveness_call(session.id, now=10.0)
    ledger.session(back.id, now=12.0)
    assert ledger.expire(now=14.9) == []
    assert ledger.expire(now=15.0) == [gone]
    ledger.hold_liveness_call(back.id)
    ledger.session(back.id, now=16.0)
    assert ledger.expire(now=45.9) == []
    assert ledger.expire(now=46.0) == [back]


def test_what_was_sent_by_a_client_that_is_gone_keeps_its_session_no_longer() -> None:
    ledger = SessionLedger(LEASE, reconnect_seconds=5.0)
    session = opened(ledger)
    ledger.hold_liveness_call(session.id)
    ledger.end_liveness_call(session.id, now=1.0)
    ledger.session(session.id, now=1.1)
    assert ledger.expire(now=6.1) == [session]


def test_a_session_is_attended_until_the_last_call_breaks_off() -> None:
    ledger = SessionLedger(LEASE, reconnect_seconds=5.0)
    session = opened(ledger)
    for _ in range(2):
        ledger.hold_liveness_call(session.id)
    ledger.end_liveness_call(session.id, now=1.0)
    assert ledger.expire(now=29.9) == []


def test_a_silent_client_whose_connection_is_given_up_keeps_its_lease() -> None:
    ledger = SessionLedger(LEASE, reconnect_seconds=5.0)
    session = opened(ledger)
    ledger.hold_liveness_call(session.id)
    ledger.end_liveness_call(session.id, now=5.0)
    assert ledger.expire(now=29.9) == []
    assert ledger.expire(now=30.0) == [session]


def test_only_an_open_session_is_attended() -> None:
    with pytest.raises(SessionLostError, match="restarted"):
        SessionLedger(LEASE).hold_liveness_call(b"x" * 16)


def test_an_ended_session_is_lost_until_it_is_resumed_with_its_numbering() -> None:
    ledger = SessionLedger(LEASE)
    session = opened(ledger)
    applied(session.numbering, 1)
    ledger.expire(now=LEASE)
    with pytest.raises(SessionLostError, match="open it again"):
        ledger.session(session.id, now=LEASE)
    resumed = opened(ledger, now=LEASE)
    assert isinstance(resumed.numbering.admit(key(1)), Replay)
    assert resumed.numbering.last == 1


def test_an_unknown_session_is_told_that_the_server_may_have_restarted() -> None:
    with pytest.raises(SessionLostError, match="restarted"):
        SessionLedger(LEASE).session(b"x" * 16, now=0.0)


def test_only_so_many_ended_sessions_are_remembered() -> None:
    ledger = SessionLedger(LEASE)
    for number in range(MAX_REMEMBERED + 1):
        session = opened(ledger, number)
        applied(session.numbering, 1)
        ledger.close(session.id)
    assert opened(ledger, 0).numbering.last == 0
    assert opened(ledger, 1).numbering.last == 1


def test_a_task_has_only_so_many_sessions_and_others_have_more() -> None:
    ledger = SessionLedger(LEASE)
    for number in range(share_of(MAX_SESSIONS, 0)):
        opened(ledger, number)
    with pytest.raises(ResourceExhaustedError, match="sessions that are open"):
        opened(ledger, MAX_SESSIONS)
    assert opened(ledger, 0).id == bytes(16)
    ledger.open(Session(b"another session!", ROLE_WORKER, Task(job="worker", index=1)), 0.0)


@pytest.mark.parametrize("job", ["j" * 513, "two words"])
def test_the_job_of_a_task_is_a_name(job: str) -> None:
    with pytest.raises(InvalidNameError, match="job name"):
        SessionLedger(LEASE).open(Session(bytes(16), ROLE_WORKER, Task(job=job)), 0.0)


def test_the_order_of_sessions_outlasts_resumption_and_a_restart() -> None:
    ledger = SessionLedger(10.0)
    first, second = b"1" * 16, b"2" * 16
    for session_id in (first, second):
        ledger.open(Session(session_id, ROLE_WORKER, Task()), 0.0)
    ledger.close(first)
    again = SessionLedger(10.0)
    again.restore(ledger.sessions())
    opened = [
        again.open(Session(session_id, ROLE_WORKER, Task()), 1.0).opened
        for session_id in (b"3" * 16, first, second)
    ]
    assert opened == [3, 1, 2]


def test_a_client_is_heard_of_until_its_connection_is_closed_or_it_is_silent() -> None:
    ledger = SessionLedger(LEASE, reconnect_seconds=5.0)
    cut_off, silent = opened(ledger, 1), opened(ledger, 2)
    ledger.hold_liveness_call(cut_off.id)
    ledger.session(cut_off.id, now=1.0)
    ledger.end_liveness_call(cut_off.id, now=2.0)
    heard = [ledger.is_heard(cut_off.id, now) for now in (2.9, 3.0)]
    assert heard == [True, False]
    ledger.hold_liveness_call(cut_off.id)  # its connection was broken
    assert ledger.is_heard(cut_off.id, now=3.0)
    assert [ledger.is_heard(silent.id, now) for now in (4.9, 5.0)] == [True, False]
    ledger.close(silent.id)
    assert not ledger.is_heard(silent.id, now=0.0)


def test_a_session_of_a_superseded_program_is_refused() -> None:
    succession = Succession()
    ledger = SessionLedger(LEASE, succession=succession)
    session = opened(ledger)
    session.program = b"first"
    ledger.session(session.id, now=0.0)
    succession.succeed(Incumbent(number=1, program=b"second"), b"")
    with pytest.raises(SupersededError):
        ledger.session(session.id, now=0.0)
