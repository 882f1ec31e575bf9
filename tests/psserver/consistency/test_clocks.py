"""Clocks: which worker may begin which step, and with what consistency."""

from __future__ import annotations

import json

import pytest

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from stratagem_proto.v1.consistency_pb2 import (
    CONSISTENCY_MODE_ASYNC,
    CONSISTENCY_MODE_BOUNDED,
    CONSISTENCY_MODE_SYNC,
    Consistency,
    StepBegin,
    WorkerClock,
)
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, Task
from stratagem_psserver.consistency.clocks import Clocks
from stratagem_psserver.exactly_once.sessions import Session

ASYNC = Consistency(mode=CONSISTENCY_MODE_ASYNC)
SYNC = Consistency(mode=CONSISTENCY_MODE_SYNC)


def bounded(bound: int) -> Consistency:
    return Consistency(mode=CONSISTENCY_MODE_BOUNDED, bound=bound)


def session_of(worker: int, session_id: bytes, opened: int = 0) -> Session:
    task = Task(job="worker", index=worker)
    return Session(session_id, ROLE_WORKER, task, expires=0.0, opened=opened)


class Group:
    """The workers of one optimizer."""

    def __init__(self, declared: Consistency, num_workers: int = 2) -> None:
        self.clocks = Clocks()
        self.declared = declared
        self.num_workers = num_workers
        self.closed = 0

    def begin(self, worker: int, finished: int, session: str = "", opened: int = 0) -> int | None:
        """The step that a worker may take, None if it has to wait."""
        begin = StepBegin(
            group="SGD",
            worker=worker,
            num_workers=self.num_workers,
            finished=finished,
            declared=self.declared,
        )
        session_id = (session or f"session {worker}").encode()
        self.clocks.arrive(begin, session_of(worker, session_id, opened), self.closed)
        return self.grant(worker)

    def grant(self, worker: int) -> int | None:
        grant = self.clocks.grant("SGD", worker, self.closed)
        return grant.step if grant is not None else None

    def leave(self, worker: int) -> list[str]:
        return self.clocks.session_ended(f"session {worker}".encode(), "it left")

    def restart(self) -> None:
        """Lets another run of the server go on from a checkpoint."""
        facts = json.loads(json.dumps(self.clocks.facts()))
        self.clocks = Clocks()
        self.clocks.restore(facts)

    def clock(self, worker: int) -> WorkerClock:
        (report,) = self.clocks.report()
        return report.workers[worker]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_nobody_begins_a_step_too_far_ahead_of_the_slowest(bound: int) -> None:
    group = Group(bounded(bound))
    for finished in range(bound + 1):
        assert group.begin(0, finished) == finished + 1
    assert group.begin(0, bound + 1) is None
    # Worker 1 has not come; then it has, but has not finished anything.
    assert group.begin(1, 0) == 1
    assert group.grant(0) is None
    assert group.begin(1, 1) == 2
    assert group.grant(0) == bound + 2


def test_who_keeps_the_others_waiting_is_named() -> None:
    group = Group(bounded(0), num_workers=3)
    group.begin(0, 0)
    group.begin(0, 1)
    assert "worker 1, worker 2 only 0" in group.clocks.explain_wait("SGD", 0)
    group.begin(1, 0)
    group.begin(2, 0)
    group.begin(2, 1)
    explained = group.clocks.explain_wait("SGD", 0)
    assert "task:0 has finished 1 steps, but /job:worker/task:1 only 0" in explained


def test_a_worker_that_is_gone_holds_nobody_back() -> None:
    group = Group(bounded(1))
    group.begin(1, 0)
    for finished in range(2):
        group.begin(0, finished)
    assert group.begin(0, 2) is None
    assert group.leave(1) == ["SGD"]
    assert group.grant(0) == 3
    assert group.clock(1).gone == "it left"


def test_a_worker_that_comes_back_is_level_with_the_slowest() -> None:
    group = Group(bounded(1))
    group.begin(1, 0)
    group.leave(1)
    for finished in range(8):
        group.begin(0, finished)
    assert group.begin(1, 0, "another session") == 8
    assert group.grant(0) == 8
    assert not group.clock(1).gone


def test_to_say_the_same_again_changes_nothing() -> None:
    group = Group(ASYNC)
    for _ in range(3):
        assert group.begin(0, 0) == 1
    for _ in range(3):
        assert group.begin(0, 1) == 2
    assert list(group.clock(0).staleness) == [1]


def test_a_change_holds_from_the_first_step_that_nobody_began() -> None:
    group = Group(ASYNC)
    for finished in range(5):
        group.begin(0, finished)
    group.begin(1, 0)
    assert group.clocks.change("SGD", bounded(0)) == 6
    assert group.clocks.change("SGD", bounded(0)) == 6
    # Who is behind leaves out the steps between, and the others need not wait for it.
    assert group.begin(0, 5) == 6
    assert group.begin(0, 6) is None
    assert group.begin(1, 1) == 6
    assert group.begin(1, 6) == 7
    assert group.grant(0) == 7


def test_a_server_that_restarts_knows_what_holds_and_waits_for_nobody_gone() -> None:
    group = Group(ASYNC, num_workers=3)
    for worker in range(3):
        group.begin(worker, 0)
    assert group.clocks.change("SGD", bounded(1)) == 2
    group.leave(2)
    group.restart()
    assert "restarted" in group.clock(0).gone
    assert group.begin(0, 1) == 2
    assert group.begin(1, 1) == 2
    assert group.begin(0, 2) == 3
    assert group.begin(0, 3) is None
    assert group.begin(1, 2) == 3
    assert group.grant(0) == 4
    (report,) = group.clocks.report()
    assert (report.consistency, report.since) == (bounded(1), 2)
    assert [clock.finished for clock in report.workers] == [3, 2, 0]


def test_synchronous_steps_that_were_begun_are_completed_before_a_change() -> None:
    group = Group(SYNC)
    group.begin(0, 0)
    assert group.begin(0, 1) == 2
    assert group.begin(1, 0) == 1
    assert group.clocks.change("SGD", ASYNC) == 3
    assert group.begin(0, 2) == 3
    assert group.begin(1, 1) == 2
    assert group.begin(1, 2) == 3


def test_a_change_that_nobody_saw_leaves_no_trace() -> None:
    group = Group(ASYNC)
    group.begin(0, 0)
    assert group.clocks.change("SGD", SYNC) == 2
    assert group.clocks.change("SGD", ASYNC) == 1
    assert group.begin(0, 1) == 2


def test_who_waits_goes_on_under_a_consistency_that_allows_it() -> None:
    group = Group(bounded(0))
    group.begin(1, 0)
    group.begin(0, 0)
    assert group.begin(0, 1) is None
    group.clocks.change("SGD", ASYNC)
    assert group.grant(0) == 2


def test_who_is_late_goes_on_with_the_step_after_the_closed_ones() -> None:
    group = Group(Consistency(mode=CONSISTENCY_MODE_SYNC, replicas_to_aggregate=1))
    assert group.begin(1, 0) == 1
    group.closed = 7
    assert group.begin(1, 1) == 8


def test_a_worker_started_again_repeats_what_may_not_count() -> None:
    group = Group(SYNC)
    group.closed = 3
    for worker in range(2):
        group.begin(worker, 4)
    group.leave(1)
    assert group.begin(1, 0, "another session") == 4


def test_staleness_counts_what_others_finish_meanwhile() -> None:
    group = Group(ASYNC)
    group.begin(1, 0)
    for finished in range(4):
        group.begin(0, finished)
    # Worker 0 finished 3 steps while worker 1 took its first.
    group.begin(1, 1)
    assert list(group.clock(1).staleness) == [0, 0, 1]
    assert list(group.clock(0).staleness) == [3]


def test_facts_are_those_of_the_moment_whatever_follows() -> None:
    group = Group(ASYNC)
    for finished in range(3):
        group.begin(0, finished)
    facts = group.clocks.facts()
    before = json.dumps(facts)
    for finished in range(3, 6):
        group.begin(0, finished)
    assert json.dumps(facts) == before != json.dumps(group.clocks.facts())


@pytest.mark.parametrize(
    ("worker", "declared", "says"),
    [
        (2, ASYNC, "as worker 2 of 2"),
        (0, Consistency(), "must be one of async, bounded, sync"),
        (
            0,
            Consistency(mode=CONSISTENCY_MODE_SYNC, replicas_to_aggregate=3),
            "only 2 workers contribute",
        ),
    ],
)
def test_a_worker_must_be_possible(worker: int, declared: Consistency, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        Group(declared).begin(worker, 0)


def test_workers_that_begin_differently_are_both_named() -> None:
    group = Group(bounded(2))
    group.begin(0, 0)
    group.declared = SYNC
    with pytest.raises(
        InvalidArgumentError, match=r"task:1 and .*task:0 .* sync against bounded\(2\)"
    ):
        group.begin(1, 0)
    # Alone, it may have been started again with other settings.
    group.leave(0)
    assert group.begin(1, 0) is not None


def test_two_tasks_cannot_be_the_same_worker() -> None:
    group = Group(ASYNC)
    group.begin(0, 0)
    impostor = StepBegin(group="SGD", num_workers=2, declared=ASYNC)
    with pytest.raises(FailedPreconditionError, match="both are worker 0"):
        group.clocks.arrive(impostor, session_of(9, b"other"), 0)


def test_a_late_request_of_an_earlier_run_does_not_move_the_clock_of_the_later_one() -> None:
    group = Group(bounded(2))
    group.begin(0, 0)
    assert group.begin(1, 0, "first", opened=1) == 1
    assert group.begin(1, 0, "second", opened=2) == 1
    with pytest.raises(FailedPreconditionError, match="a later run of /job:worker/task:1"):
        group.begin(1, 1, "first", opened=1)
    assert group.clock(1).finished == 0


def test_an_earlier_run_that_is_late_from_the_start_gives_way_to_the_later_one() -> None:
    group = Group(bounded(2))
    group.begin(0, 0)
    assert group.begin(1, 0, "first", opened=1) == 1
    assert group.begin(1, 0, "second", opened=2) == 1
    group.clocks.session_ended(b"second", "it left")
    assert group.begin(1, 0, "first", opened=1) == 1


def test_only_what_someone_has_begun_can_be_changed() -> None:
    with pytest.raises(NotFoundError, match="no worker has begun a step of 'Adam'"):
        Clocks().change("Adam", SYNC)
