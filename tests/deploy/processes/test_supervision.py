"""Which signal follows on which event, and which exit code on which end."""

from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM

from stratagem_deploy.processes.supervision import Supervision

WORKERS = ("worker:0", "worker:1", "worker:2")


def test_a_run_succeeds_when_all_workers_do() -> None:
    run = Supervision(WORKERS)
    assert [run.ended(name, 0) for name in WORKERS] == [0, 0, 0]
    assert (run.running, run.failure, run.exit_code) == (set(), "", 0)


def test_the_first_failure_ends_the_others_and_gives_the_exit_code() -> None:
    run = Supervision(WORKERS)
    assert run.ended("worker:2", 7) == SIGTERM
    assert run.ended("worker:0", 3) == 0
    assert run.ended("worker:1", -SIGTERM) == 0
    assert (run.failure, run.exit_code) == ("worker:2", 7)


def test_a_worker_that_a_signal_ended_gives_the_code_that_a_shell_would() -> None:
    run = Supervision(WORKERS)
    assert run.ended("worker:1", -SIGKILL) == SIGTERM
    assert run.exit_code == 128 + SIGKILL


def test_a_server_that_ends_during_the_run_has_failed_even_with_code_zero() -> None:
    run = Supervision(WORKERS)
    assert run.ended("ps:0", 0) == SIGTERM
    assert (run.failure, run.exit_code) == ("ps:0", 1)


def test_a_signal_is_passed_on_and_the_second_one_kills() -> None:
    run = Supervision(WORKERS)
    assert run.signalled(SIGINT) == SIGINT
    assert run.signalled(SIGINT) == SIGKILL


def test_an_interrupted_run_exits_as_interrupted_though_it_had_to_be_killed() -> None:
    run = Supervision(WORKERS)
    run.signalled(SIGINT)
    assert run.ended("worker:0", -SIGKILL) == 0
    assert run.exit_code == 128 + SIGINT


def test_a_script_that_handles_the_interruption_chooses_the_exit_code() -> None:
    run = Supervision(["worker:0"])
    run.signalled(SIGTERM)
    run.ended("worker:0", 0)
    assert run.exit_code == 0
