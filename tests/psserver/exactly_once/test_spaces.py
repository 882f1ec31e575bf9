"""Coordinators that a server knows, and those that it may forget."""

from __future__ import annotations

import json

import pytest

from stratagem_proto.errors import FailedPreconditionError, ResourceExhaustedError
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_psserver.exactly_once import closures
from stratagem_psserver.exactly_once.closures import (
    ClosureLedger,
    EndedClosures,
    Requester,
    dump_closures,
    restore_closures,
)
from stratagem_psserver.exactly_once.numbering import Apply, Refused, Replay
from tests.psserver.exactly_once.closure_runs import intent, key

ASSIGN = intent("Assign of 'a'")
ONE, OTHER = Requester(b"one", "/job:chief/task:0"), Requester(b"other", "/job:worker/task:1")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for four coordinators."""
    monkeypatch.setattr(closures, "MAX_COORDINATORS", 4)


def name_of(number: int) -> bytes:
    return b"%016d" % number


def admitted(ledger: ClosureLedger, number: int, user: Requester) -> Exception | None:
    """Why the first mutation in the name of a coordinator is refused; None once it is applied."""
    name = key(1, 1, name_of(number))
    admission = ledger.admit(name, ASSIGN, user)
    if isinstance(admission, Refused):
        return admission.error
    assert isinstance(admission, Apply)
    ledger.finish(name, ASSIGN, RecordedReply(sequence=1), user)
    return None


def test_a_coordinator_that_was_forgotten_is_refused_and_is_not_new_again() -> None:
    living = {b"one"}
    ledger = ClosureLedger(lambda: living)
    assert [admitted(ledger, number, ONE) for number in range(3)] == [None] * 3
    living = {b"other"}
    assert [admitted(ledger, number, OTHER) for number in range(3, 5)] == [None] * 2
    living = {b"one", b"other"}
    # What it has changed would be changed again.
    error = admitted(ledger, 0, ONE)
    assert isinstance(error, FailedPreconditionError)
    assert "coordinator 30303030 is over" in error.message
    assert "Make another ClusterCoordinator" in error.message
    assert isinstance(ledger.admit(key(1, 1, name_of(1)), ASSIGN, ONE), Replay)


def test_no_coordinator_of_a_living_program_is_forgotten_for_others() -> None:
    ledger = ClosureLedger(lambda: {b"one", b"other"})
    assert [admitted(ledger, number, ONE) for number in range(3)] == [None] * 3
    before = dump_closures(ledger)
    error = admitted(ledger, 3, ONE)
    assert isinstance(error, ResourceExhaustedError)
    assert "/job:chief/task:0 has 3 coordinators on this server, and its share is 3" in str(error)
    assert dump_closures(ledger) == before


def test_one_client_leaves_places_for_others() -> None:
    ledger = ClosureLedger(lambda: {b"one", b"other"})
    assert [admitted(ledger, number, ONE) for number in range(2)] == [None] * 2
    assert admitted(ledger, 2, OTHER) is None
    assert isinstance(admitted(ledger, 3, ONE), ResourceExhaustedError)


def test_what_is_being_applied_counts_too() -> None:
    ledger = ClosureLedger(lambda: {b"one"})
    decided = [ledger.admit(key(1, 1, name_of(number)), ASSIGN, ONE) for number in range(4)]
    assert [type(each) for each in decided] == [Apply, Apply, Apply, Refused]


def test_a_coordinator_that_has_ended_takes_no_place() -> None:
    ledger = ClosureLedger(lambda: {b"one"})
    for number in range(10):
        assert admitted(ledger, number, ONE) is None
        ledger.end(name_of(number), EndedClosures.all(), ONE)
    assert ledger.count == ledger.nbytes == 0
    assert isinstance(admitted(ledger, 0, ONE), FailedPreconditionError)


def test_a_checkpoint_knows_who_is_over_and_who_has_used_what() -> None:
    ledger = ClosureLedger(lambda: {b"one", b"other"})
    assert [admitted(ledger, number, ONE) for number in range(2)] == [None] * 2
    ledger.end(name_of(0), EndedClosures.all(), ONE)
    facts = json.loads(json.dumps(dump_closures(ledger)))
    again = ClosureLedger(lambda: {b"one", b"other"})
    restore_closures(again, facts)
    assert dump_closures(again) == facts
    assert isinstance(admitted(again, 0, ONE), FailedPreconditionError)
    assert {space.user for _, space in again.coordinators()} == {ONE}


def test_one_client_lets_nobody_forget_which_coordinators_of_others_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closures, "MAX_OVER", 3)
    ledger = ClosureLedger(lambda: {b"one", b"other"})
    ledger.end(name_of(0), EndedClosures.all(), ONE)
    for number in range(1, 10):
        ledger.end(name_of(number), EndedClosures.all(), OTHER)
    assert isinstance(admitted(ledger, 0, ONE), FailedPreconditionError)


def test_exceptions_to_what_has_ended_have_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closures, "MAX_UNENDED", 8)
    ledger = ClosureLedger(lambda: {b"one", b"other"})
    few, many = EndedClosures(99, frozenset(range(1, 5))), EndedClosures(99, frozenset(range(1, 8)))
    with pytest.raises(ResourceExhaustedError, match="besides 0, and its share is 6"):
        ledger.require(name_of(0), many, ONE)
    ledger.end(name_of(0), few, ONE)
    ledger.require(name_of(0), few, ONE)
    with pytest.raises(ResourceExhaustedError, match="besides 4, and its share is 6"):
        ledger.require(name_of(1), few, ONE)
    with pytest.raises(ResourceExhaustedError, match="besides 0, and its share is 3"):
        ledger.require(name_of(1), few, OTHER)


def test_records_of_mutations_have_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closures, "MAX_RECORDS", 4)
    ledger = ClosureLedger(lambda: {b"one", b"other"})
    assert [admitted(ledger, 0, ONE), admitted(ledger, 1, ONE)] == [None] * 2
    assert admitted(ledger, 2, OTHER) is None
    refused = ledger.admit(key(2, 1, name_of(0)), ASSIGN, ONE)
    assert isinstance(refused, Refused)
    assert "2 mutations of scheduled functions are recorded for /job:chief" in str(refused.error)
    assert "three quarters of what others leave of 4" in str(refused.error)
