"""Which of the processes that say to be one task may act."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from stratagem_proto.errors import PermissionDeniedError, SupersededError
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_COORDINATOR,
    ROLE_EVALUATOR,
    ROLE_WORKER,
    Role,
    Task,
)
from stratagem_psserver.exactly_once import sessions as session_facts
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.sessions import Session

FORMER, NEXT = b"former process..", b"the next process"
WORKER = Task(job="worker", index=1)


def session(
    number: int,
    process: bytes,
    task: Task = WORKER,
    role: Role = ROLE_WORKER,
    program: bytes = b"",
) -> Session:
    name = number.to_bytes(16, "big")
    return Session(name, role, task, b"client" + name, program, process)


def opened(*sessions: Session) -> SessionLedger:
    ledger = SessionLedger(60.0)
    for each in sessions:
        ledger.open(each, 0.0)
    return ledger


def ids(sessions: Sequence[Session]) -> list[bytes]:
    return [each.id for each in sessions]


def test_whoever_comes_last_takes_the_place_of_all_sessions_of_the_former() -> None:
    first, second = session(1, FORMER), session(2, FORMER)
    ledger = opened(first, second)
    assert ids(ledger.replace(session(3, NEXT))) == ids([first, second])


def test_a_process_that_is_being_replaced_asks_for_nothing_more() -> None:
    former = session(1, FORMER)
    ledger = opened(former)
    ledger.replace(session(2, NEXT))
    with pytest.raises(SupersededError, match="another process has begun as /job:worker/task:1"):
        ledger.session(former.id, 1.0)


def test_a_former_process_does_not_come_back() -> None:
    former = session(1, FORMER)
    ledger = opened(former)
    ledger.close(former.id)
    ledger.open(session(2, NEXT), 1.0)
    with pytest.raises(SupersededError):
        ledger.open(session(1, FORMER), 2.0)


def test_a_former_process_that_comes_back_ends_nobody() -> None:
    former, present = session(1, FORMER), session(2, NEXT)
    ledger = opened(former, present)
    with pytest.raises(SupersededError):
        ledger.replace(session(1, FORMER))
    assert ledger.session(present.id, 1.0) is present


def test_who_may_open_no_session_ends_nobody() -> None:
    first = session(1, FORMER)
    ledger = opened(first)
    with pytest.raises(PermissionDeniedError, match="its own for ever"):
        ledger.replace(session(1, NEXT, role=ROLE_CHIEF))
    assert ledger.session(first.id, 1.0) is first


def test_places_are_remembered_of_so_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_facts, "_MOST_PRESENT", 2)
    tasks = [Task(job="worker", index=index) for index in range(3)]
    ledger = opened(*(session(index, FORMER, task) for index, task in enumerate(tasks)))
    places = ledger.fence.facts()["present"]
    assert [place[:2] for place in places] == [["worker", 1], ["worker", 2]]


def test_a_program_that_begins_anew_in_a_former_process_comes_last() -> None:
    ledger = opened(session(1, FORMER), session(2, NEXT))
    assert ids(ledger.replace(session(3, FORMER))) == ids([session(2, NEXT)])
    ledger.open(session(3, FORMER), 1.0)
    with pytest.raises(SupersededError):
        ledger.open(session(2, NEXT), 2.0)


@pytest.mark.parametrize(
    "other",
    [
        session(2, FORMER),
        session(2, b""),
        session(2, NEXT, Task(job="worker", index=2)),
        session(2, NEXT, Task(job="chief", index=1)),
        session(2, NEXT, role=ROLE_EVALUATOR),
        session(2, NEXT, role=ROLE_COORDINATOR),
    ],
)
def test_others_take_no_place(other: Session) -> None:
    first = session(1, FORMER)
    ledger = opened(first)
    assert not ledger.replace(other)
    ledger.open(other, 0.0)
    assert ledger.session(first.id, 1.0) is first


def test_programs_without_a_task_live_side_by_side() -> None:
    first, second = session(1, FORMER, Task()), session(2, NEXT, Task())
    assert not opened(first).replace(second)


def test_a_server_that_starts_again_knows_the_former_processes() -> None:
    former, present = session(1, FORMER), session(2, NEXT)
    before, after = opened(former, present), SessionLedger(60.0)
    after.restore(before.sessions())
    after.fence.restore(json.loads(json.dumps(before.fence.facts())))
    assert after.fence.facts() == before.fence.facts()
    with pytest.raises(SupersededError):
        after.open(former, 1.0)
    assert after.open(present, 1.0) is present
