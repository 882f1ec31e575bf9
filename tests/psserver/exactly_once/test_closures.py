"""Changes of functions that run again on another worker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_psserver.exactly_once import closures
from stratagem_psserver.exactly_once.closures import (
    ClosureLedger,
    EndedClosures,
    dump_closures,
    restore_closures,
)
from stratagem_psserver.exactly_once.numbering import Apply, Refused, Replay, WaitForEarlier
from tests.psserver.exactly_once.closure_runs import SPACE, Runs, intent, key

ASSIGN, UPDATE = intent("Assign of 'a'"), intent("Update of 'b'")


def applied(ledger: ClosureLedger, number: int, ordinal: int, space: bytes = SPACE) -> None:
    name = key(number, ordinal, space)
    assert isinstance(ledger.admit(name, ASSIGN), Apply)
    ledger.finish(name, ASSIGN, RecordedReply(sequence=ordinal, response=b"done"))


def refusal(ledger: ClosureLedger, number: int, ordinal: int) -> Exception:
    admission = ledger.admit(key(number, ordinal), ASSIGN)
    assert isinstance(admission, Refused)
    return admission.error


@given(st.data())
def test_each_mutation_is_applied_once_whichever_runs_meet(
    data: st.DataObject,
) -> None:
    """First runs, those that come after a loss, and those of workers thought lost."""
    runs = Runs(data)
    runs.happen(data.draw(st.integers(0, 80)))
    runs.finish()
    assert set(runs.applied.values()) == {1}
    assert len(runs.applied) == 9


@given(st.data())
def test_what_a_checkpoint_has_recorded_goes_on_as_it_was(
    data: st.DataObject,
) -> None:
    runs = Runs(data)
    runs.happen(data.draw(st.integers(0, 80)))
    facts = json.loads(json.dumps(dump_closures(runs.ledger)))
    runs.ledger = ClosureLedger()
    restore_closures(runs.ledger, facts)
    for run in runs.runs:
        # A checkpoint waits for what is being applied; what was not, comes again.
        run.applying = False
    runs.finish()
    assert set(runs.applied.values()) == {1}


def test_a_mutation_waits_while_another_run_has_it_applied() -> None:
    ledger = ClosureLedger()
    assert isinstance(ledger.admit(key(1, 2), ASSIGN), Apply)
    assert ledger.admit(key(1, 2), ASSIGN) == WaitForEarlier(2)
    assert isinstance(ledger.admit(key(1, 1), ASSIGN), Apply)


def test_a_rejection_is_the_answer_to_every_run() -> None:
    ledger, reply = ClosureLedger(), RecordedReply(sequence=1)
    reply.status.code = 5
    ledger.admit(key(1, 1), ASSIGN)
    ledger.finish(key(1, 1), ASSIGN, reply)
    assert ledger.admit(key(1, 1), ASSIGN) == Replay(reply)


def test_a_function_that_does_something_else_when_it_runs_again_is_told_so() -> None:
    ledger = ClosureLedger()
    applied(ledger, 4, 1)
    admission = ledger.admit(key(4, 1), UPDATE)
    assert isinstance(admission, Refused)
    assert isinstance(admission.error, FailedPreconditionError)
    assert "function 4 of" in admission.error.message
    assert "was Assign of 'a', but now it is Update of 'b'" in admission.error.message


def test_nothing_of_a_function_is_applied_after_its_end() -> None:
    ledger = ClosureLedger()
    applied(ledger, 2, 1)
    ledger.end(SPACE, EndedClosures(3, frozenset({1})))
    for ordinal in (1, 2):
        assert "function 2 of coordinator 636f6f72 has ended" in str(refusal(ledger, 2, ordinal))
    applied(ledger, 1, 1)
    applied(ledger, 4, 1)


def test_what_was_being_applied_at_the_end_of_its_function_is_not_kept() -> None:
    ledger = ClosureLedger()
    ledger.admit(key(1, 1), ASSIGN)
    ledger.end(SPACE, EndedClosures(1))
    ledger.finish(key(1, 1), ASSIGN, RecordedReply(sequence=1))
    assert "has ended" in str(refusal(ledger, 1, 1))
    assert [space.unended for _, space in ledger.coordinators()] == [{}]


def test_the_functions_of_two_coordinators_have_nothing_in_common() -> None:
    ledger = ClosureLedger()
    applied(ledger, 1, 1)
    applied(ledger, 1, 1, space=b"another 12345678")


@pytest.mark.parametrize(("bound", "value"), [("MAX_RECORDS", 3), ("MAX_RECORD_BYTES", 50)])
def test_records_have_a_limit_until_functions_end(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closures, bound, value)
    ledger = ClosureLedger()
    applied(ledger, 1, 1)
    applied(ledger, 2, 1)
    assert isinstance(refusal(ledger, 3, 1), ResourceExhaustedError)
    ledger.end(SPACE, EndedClosures(1))
    applied(ledger, 3, 1)


@pytest.mark.parametrize("again", [1, 2, 3])
def test_what_is_not_applied_leaves_no_trace(again: int) -> None:
    other = b"coordinator 5678"
    ledger = ClosureLedger()
    applied(ledger, 1, 1)
    ledger.end(SPACE, EndedClosures(3, frozenset({1, 2})))
    applied(ledger, 1, 1, other)
    before = dump_closures(ledger)
    # It is recognised, fails for a reason that passes, or is refused.
    if isinstance(ledger.admit(key(again, 1), ASSIGN), Apply):
        ledger.finish(key(again, 1), ASSIGN, None)
    assert dump_closures(ledger) == before


@pytest.mark.parametrize(
    ("number", "ordinal", "space"),
    [(0, 1, SPACE), (1, 0, SPACE), (1, 1, b"short")],
)
def test_a_key_that_is_none_is_refused(number: int, ordinal: int, space: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        ClosureLedger().admit(key(number, ordinal, space), ASSIGN)


ENDED = st.builds(EndedClosures, st.integers(0, 20), st.frozensets(st.integers(1, 20), max_size=6))


@given(ENDED, ENDED)
def test_what_has_ended_once_has_ended_for_ever(one: EndedClosures, other: EndedClosures) -> None:
    numbers = range(1, 30)
    united = {number for number in numbers if number in one.united(other)}
    assert united == {number for number in numbers if number in one or number in other}
