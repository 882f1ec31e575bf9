"""Which signal follows on which event, and which exit code on which end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from signal import SIGINT, SIGKILL, SIGTERM

from stratagem_deploy.processes.supervision import Restarts, Supervision

WORKERS = ("worker:0", "worker:1", "worker:2")


def supervision(workers: Iterable[str], max_restarts: int = 0) -> Supervision:
    return Supervision(workers, Restarts(max_restarts))


def test_a_run_succeeds_when_all_workers_do() -> None:
    run = supervision(WORKERS)
    assert [run.ended(name, 0, 0.0) for name in WORKERS] == [0, 0, 0]
    assert (run.running, run.failure, run.exit_code) == (set(), "", 0)


def test_the_first_failure_ends_the_others_and_gives_the_exit_code() -> None:
    run = supervision(WORKERS)
    assert run.ended("worker:2", 7, 0.0) == SIGTERM
    assert run.ended("worker:0", 3, 0.0) == 0
    assert run.ended("worker:1", -SIGTERM, 0.0) == 0
    assert (run.failure, run.exit_code) == ("worker:2", 7)


def test_a_worker_that_a_signal_ended_gives_the_code_that_a_shell_would() -> None:
    run = supervision(WORKERS)
    assert run.ended("worker:1", -SIGKILL, 0.0) == SIGTERM
    assert run.exit_code == 128 + SIGKILL


def test_a_server_that_ends_during_the_run_has_failed_even_with_code_zero() -> None:
    run = supervision(WORKERS)
    assert run.ended("ps:0", 0, 0.0) == SIGTERM
    assert (run.failure, run.exit_code) == ("ps:0", 1)


def test_a_server_that_outlives_its_process_is_started_again_like_a_worker() -> None:
    run = Supervision(WORKERS, Restarts(1), servers_go_on=True)
    assert run.ended("ps:0", -SIGKILL, 0.0) == 0
    assert (run.failure, run.running) == ("", set(WORKERS))
    assert run.restarts.take_due(math.inf) == ["ps:0"]
    assert run.ended("ps:0", -SIGKILL, 0.0) == SIGTERM
    assert (run.failure, run.exit_code) == ("ps:0", 1)


def test_a_signal_while_a_server_waits_for_its_start_is_what_ended_the_run() -> None:
    run = Supervision(["worker:0"], Restarts(1), servers_go_on=True)
    run.ended("ps:0", -SIGKILL, 0.0)
    assert run.signalled(SIGTERM) == SIGTERM
    run.ended("worker:0", -SIGTERM, 0.0)
    assert run.exit_code == 128 + SIGTERM


def test_a_signal_is_passed_on_and_the_second_one_kills() -> None:
    run = supervision(WORKERS)
    assert run.signalled(SIGINT) == SIGINT
    assert run.signalled(SIGINT) == SIGKILL


def test_an_interrupted_run_exits_as_interrupted_though_it_had_to_be_killed() -> None:
    run = supervision(WORKERS)
    run.signalled(SIGINT)
    assert run.ended("worker:0", -SIGKILL, 0.0) == 0
    assert run.exit_code == 128 + SIGINT


def test_a_script_that_handles_the_interruption_chooses_the_exit_code() -> None:
    run = supervision(["worker:0"])
    run.signalled(SIGTERM)
    run.ended("worker:0", 0, 0.0)
    assert run.exit_code == 0


def test_a_worker_that_failed_is_started_again_and_the_others_go_on() -> None:
    run = supervision(WORKERS, max_restarts=1)
    assert run.ended("worker:1", -SIGKILL, 10.0) == 0
    assert run.running == set(WORKERS)
    assert run.restarts.next_due == 10.5
    assert run.restarts.take_due(10.4) == []
    assert run.restarts.take_due(10.5) == ["worker:1"]
    assert run.restarts.take_due(10.5) == []
    assert run.restarts.next_due == math.inf
    assert [run.ended(name, 0, 11.0) for name in WORKERS] == [0, 0, 0]
    assert (run.running, run.failure, run.exit_code) == (set(), "", 0)


def test_all_workers_share_the_restarts_and_wait_longer_each_time() -> None:
    run = supervision(WORKERS, max_restarts=8)
    delays = []
    for attempt in range(8):
        name = WORKERS[attempt % 3]
        assert run.ended(name, 1, 0.0) == 0
        delays.append(run.restarts.next_due)
        assert run.restarts.take_due(math.inf) == [name]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert run.ended("worker:0", 3, 0.0) == SIGTERM
    assert (run.failure, run.exit_code) == ("worker:0", 3)


def test_arguments_that_cannot_be_are_not_tried_again() -> None:
    run = supervision(WORKERS, max_restarts=3)
    assert run.ended("worker:1", 2, 0.0) == SIGTERM
    assert (run.failure, run.exit_code) == ("worker:1", 2)


def test_a_server_is_not_started_again() -> None:
    run = supervision(WORKERS, max_restarts=3)
    assert run.ended("ps:0", -SIGKILL, 0.0) == SIGTERM
    assert (run.failure, run.exit_code) == ("ps:0", 1)


def test_when_the_run_ends_nobody_is_started_any_more() -> None:
    run = supervision(WORKERS, max_restarts=3)
    run.ended("worker:1", 1, 0.0)
    assert run.ended("ps:0", 1, 0.0) == SIGTERM
    assert run.restarts.next_due == math.inf
    assert run.ended("worker:0", -SIGTERM, 0.0) == 0
    assert run.running == {"worker:2"}


def test_an_interruption_ends_who_waits_for_its_start() -> None:
    run = supervision(["worker:0"], max_restarts=3)
    run.ended("worker:0", 7, 0.0)
    assert run.signalled(SIGINT) == SIGINT
    assert (run.running, run.exit_code) == (set(), 128 + SIGINT)
