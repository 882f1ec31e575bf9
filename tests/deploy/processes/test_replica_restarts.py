"""Which replicas of servers are started again, and when."""

from __future__ import annotations

import math
from signal import SIGKILL, SIGTERM

from stratagem_deploy.processes.supervision import (
    SUPERSEDED,
    ReplicaRestarts,
    Restarts,
    Supervision,
)

FIRST, SECOND = "ps:0 replica 0", "ps:0 replica 1"
OTHER = "ps:1 replica 0", "ps:1 replica 1"
TASKS = {FIRST: "ps:0", SECOND: "ps:0", OTHER[0]: "ps:1", OTHER[1]: "ps:1"}


def supervision(keep_state: bool = False) -> Supervision:
    return Supervision(
        ["worker:0"], Restarts(0), replicas=ReplicaRestarts(TASKS, lambda _: keep_state)
    )


def test_a_replica_is_started_again_without_any_restarts_of_the_run() -> None:
    run = supervision()
    for number in range(10):
        now = 1000.0 * number
        assert run.ended(FIRST, -SIGKILL, now) == 0
        assert run.rejoining == {FIRST}
        assert run.next_due == now + 0.5
        assert run.take_due(now + 0.4) == []
        assert run.take_due(now + 0.5) == [FIRST]
    assert (run.failure, run.running, run.restarts.granted) == ("", {"worker:0"}, 0)


def test_a_replica_that_ends_at_once_waits_longer_each_time() -> None:
    run, now, waits = supervision(), 0.0, []
    for _ in range(9):
        run.ended(FIRST, 1, now)
        waits.append(run.next_due - now)
        now = run.next_due
        run.take_due(now)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_run_ends_when_all_replicas_of_a_task_have_ended() -> None:
    run = supervision()
    assert run.ended(FIRST, -SIGKILL, 0.0) == 0
    assert run.ended(OTHER[1], -SIGKILL, 0.0) == 0
    assert run.ended(SECOND, -SIGKILL, 0.1) == SIGTERM
    assert (run.failure, run.exit_code) == (SECOND, 1)
    assert run.take_due(math.inf) == []


def test_replicas_with_a_log_go_on_even_then() -> None:
    run = supervision(keep_state=True)
    assert run.ended(FIRST, -SIGKILL, 0.0) == 0
    assert run.ended(SECOND, -SIGKILL, 0.1) == 0
    assert run.take_due(math.inf) == [FIRST, SECOND]


def test_a_run_that_is_interrupted_starts_no_replica_again() -> None:
    run = supervision()
    run.ended(FIRST, -SIGKILL, 0.0)
    run.signalled(SIGTERM)
    assert run.take_due(math.inf) == []
    assert run.next_due == math.inf


COORDINATORS = "coordinator:0", "coordinator:1"


def standing_by(max_restarts: int = 0) -> Supervision:
    """A program that coordinates, and another one that stands by."""
    replicas = ReplicaRestarts(dict.fromkeys(COORDINATORS, "chief:0"))
    restarts = Restarts(max_restarts)
    return Supervision(
        COORDINATORS, restarts, replicas=replicas, stateless=["worker:0"], spares=True
    )


def test_a_program_that_was_killed_is_started_again_to_stand_by() -> None:
    run = standing_by()
    assert run.ended(COORDINATORS[0], -SIGKILL, 0.0) == 0
    assert run.take_due(1.0) == [COORDINATORS[0]]
    assert run.ended(COORDINATORS[1], SUPERSEDED, 1.0) == 0
    assert run.rejoining == {COORDINATORS[1]}
    assert (run.running, run.failure) == (set(COORDINATORS), "")


def test_a_run_ends_when_the_program_has_ended_well() -> None:
    run = standing_by()
    assert run.ended(COORDINATORS[1], 0, 0.0) == SIGTERM
    assert run.ended(COORDINATORS[0], -SIGTERM, 0.1) == 0
    assert (run.running, run.failure, run.exit_code) == (set(), "", 0)


def test_a_run_ends_when_the_program_ends_well_while_the_other_one_is_not_back() -> None:
    run = standing_by()
    run.ended(COORDINATORS[0], -SIGKILL, 0.0)
    assert run.ended(COORDINATORS[1], 0, 0.1) == 0
    assert (run.running, run.failure, run.exit_code) == (set(), "", 0)


def test_a_script_that_fails_by_itself_is_not_run_by_the_next_one() -> None:
    run = standing_by()
    assert run.ended(COORDINATORS[0], 1, 0.0) == SIGTERM
    assert (run.failure, run.exit_code) == (COORDINATORS[0], 1)


def test_a_signal_ends_a_run_whose_program_waits_for_its_start() -> None:
    run = standing_by()
    run.ended(COORDINATORS[0], -SIGKILL, 0.0)
    assert run.signalled(SIGTERM) == SIGTERM
    assert run.running == {COORDINATORS[1]}
    run.ended(COORDINATORS[1], -SIGTERM, 0.1)
    assert (run.running, run.exit_code) == (set(), 128 + SIGTERM)


def test_a_worker_server_is_started_again_within_the_restarts_of_the_run() -> None:
    run = standing_by(max_restarts=1)
    assert run.ended("worker:0", -SIGKILL, 0.0) == 0
    assert run.restarts.take_due(1.0) == ["worker:0"]
    assert run.ended("worker:0", -SIGKILL, 1.0) == SIGTERM
    assert run.failure == "worker:0"
