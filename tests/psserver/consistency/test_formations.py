"""Which workers all-reduce together, and when the next generation of them is formed."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.v1.barrier_pb2 import BarrierResponse, GroupForming
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, Task
from stratagem_psserver.consistency import formations
from stratagem_psserver.consistency.formations import MAX_NOTE_BYTES, Formations
from stratagem_psserver.exactly_once.sessions import Session, session_of

NAME, PATIENCE = "dense", 10.0


class Workers:
    """Tasks that come to a group, at times that a test says.

    Attributes:
        now: The time.
        gone: The tasks that are not heard of.
    """

    def __init__(self, count: int) -> None:
        self.groups, self.count = Formations(), count
        self.now, self.gone = 0.0, set[str]()
        self._sessions: dict[int, Session] = {}
        self._known: dict[int, BarrierResponse] = {}
        self._lives = 0

    def start(self, worker: int) -> None:
        """A new process takes a worker's place."""
        self._lives += 1
        request = OpenSessionRequest(task=Task(job="worker", index=worker))
        self._sessions[worker] = session_of(request, bytes([self._lives]) * 16)
        self._known.pop(worker, None)
        self.gone.discard(self._sessions[worker].label)

    def end(self, worker: int) -> None:
        self.gone.add(self._sessions[worker].label)

    def come(self, worker: int) -> None:
        if worker not in self._sessions:
            self.start(worker)
        forming = self._forming(worker)
        self.groups.join(NAME, forming, self.count, self._sessions[worker], self.now)

    def _forming(self, worker: int) -> GroupForming:
        known = self._known.get(worker, BarrierResponse())
        return GroupForming(
            generation=known.generation,
            members=[one.task for one in known.members],
            note=b"note %d" % worker,
            patience_seconds=PATIENCE,
        )

    def formed(self, worker: int) -> list[int] | None:
        """The workers of the generation that one is in now, or None while it waits."""
        answer = self.groups.formed(
            NAME, self._forming(worker), self._sessions[worker], self._is_heard, self.now
        )
        if answer is None:
            return None
        self._known[worker] = answer
        return sorted(int(one.note.split()[1]) for one in answer.members)

    def look(self, worker: int) -> BarrierResponse:
        return self.groups.look(NAME, self._forming(worker), self._is_heard)

    def _is_heard(self, task: str) -> bool:
        return task not in self.gone

    def together(self, *some: int) -> None:
        """Have workers come, and form a generation."""
        for worker in some:
            self.come(worker)
        for worker in some:
            assert self.formed(worker) == sorted(some)


def test_the_first_generation_has_all_workers() -> None:
    workers = Workers(3)
    workers.come(0)
    workers.come(2)
    workers.now = 1000.0
    assert workers.formed(0) is None
    workers.come(1)
    assert [workers.formed(one) for one in range(3)] == [[0, 1, 2]] * 3


def test_who_is_lost_is_not_waited_for() -> None:
    workers = Workers(3)
    workers.together(0, 1, 2)
    workers.come(0)
    workers.come(1)
    assert workers.formed(0) is None
    workers.end(2)
    assert workers.formed(0) == workers.formed(1) == [0, 1]


def test_who_is_there_and_does_not_come_is_left_out_after_a_while() -> None:
    workers = Workers(3)
    workers.together(0, 1, 2)
    workers.come(0)
    workers.now = PATIENCE / 2
    workers.come(1)
    assert workers.formed(1) is None
    workers.now = PATIENCE
    assert workers.formed(0) == workers.formed(1) == [0, 1]
    workers.come(2)
    assert workers.formed(2) is None
    assert workers.look(0).is_awaited


def test_who_comes_back_waits_until_all_have_finished_their_step() -> None:
    workers = Workers(2)
    workers.together(0, 1)
    workers.end(1)
    workers.come(0)
    assert workers.formed(0) == [0]
    workers.start(1)
    workers.come(1)
    workers.now = 1000.0
    assert workers.formed(1) is None
    assert workers.look(0).is_awaited
    workers.come(0)
    assert workers.formed(1) == workers.formed(0) == [0, 1]


def test_a_process_that_is_started_again_forms_no_group_while_others_train() -> None:
    workers = Workers(3)
    workers.together(0, 1, 2)
    workers.end(1)
    workers.start(1)
    workers.come(1)
    workers.now = 1000.0
    # The others are in a long step, and do not know yet.
    assert workers.formed(1) is None
    workers.come(0)
    workers.come(2)
    assert workers.formed(1) == [0, 1, 2]


def test_where_all_were_lost_those_who_come_wait_for_the_rest_for_a_while() -> None:
    workers = Workers(3)
    workers.together(0, 1, 2)
    for worker in range(3):
        workers.end(worker)
        workers.start(worker)
    workers.end(2)
    workers.end(1)
    workers.come(0)
    assert workers.formed(0) is None
    workers.now = PATIENCE
    assert workers.formed(0) == [0]


def test_a_request_that_is_repeated_gets_the_same_answer() -> None:
    workers = Workers(2)
    workers.come(0)
    workers.come(1)
    assert workers.formed(0) == [0, 1]
    # The answer to worker 1 is lost, and it asks again.
    workers.come(1)
    assert workers.formed(1) == [0, 1]
    assert not workers.look(0).is_awaited


def test_a_server_that_was_started_again_is_told_of_the_generation() -> None:
    workers = Workers(2)
    workers.together(0, 1)
    workers.groups = Formations()
    workers.start(1)
    workers.come(1)
    workers.now = 1000.0
    assert workers.formed(1) is None
    assert workers.look(0).is_awaited
    workers.come(0)
    assert workers.formed(0) == workers.formed(1) == [0, 1]
    assert workers.look(0).generation == 2


def test_who_ended_while_it_waited_is_in_no_generation() -> None:
    workers = Workers(2)
    workers.together(0, 1)
    workers.come(0)
    workers.come(1)
    workers.groups.session_ended(workers._sessions[1].id)
    workers.end(1)
    assert workers.formed(0) == [0]
    assert not workers.look(0).has_lost


def test_what_would_take_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(1)
    workers.start(0)
    note = GroupForming(note=b"x" * (MAX_NOTE_BYTES + 1))
    with pytest.raises(InvalidArgumentError, match="4096 are the most"):
        workers.groups.join(NAME, note, 1, workers._sessions[0], 0.0)
    monkeypatch.setattr(formations, "MAX_GROUPS", 1)
    workers.together(0)
    with pytest.raises(ResourceExhaustedError, match="fewer optimizers"):
        workers.groups.join("another", GroupForming(), 1, workers._sessions[0], 0.0)
