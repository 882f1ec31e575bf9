"""How long a program takes for steps by itself, on a clock of the test."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from stratagem._ps_client.checkpoint_steps import StepPace
from stratagem._ps_client.names import running
from stratagem_proto.v1.session_pb2 import ClosureIdentity


class Clock:
    """Shows what it was set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> StepPace:
    return StepPace(clock)


def step(pace: StepPace, clock: Clock, own: float, waits: float = 0.0) -> None:
    clock.now += own
    with pace.waiting(), pace.waiting():
        clock.now += waits
    pace.step_ended("SGD")


def own_seconds(pace: StepPace) -> float | None:
    told = pace.message()
    return None if told is None else told.own_seconds


def test_what_a_program_waits_for_is_left_out(pace: StepPace, clock: Clock) -> None:
    for _ in range(6):
        step(pace, clock, own=2.0, waits=30.0)
    assert own_seconds(pace) == pytest.approx(2.0)


def test_of_a_few_steps_nothing_is_told(pace: StepPace, clock: Clock) -> None:
    for _ in range(5):
        step(pace, clock, own=2.0)
    assert pace.message() is None


def test_a_pause_between_two_steps_changes_little(pace: StepPace, clock: Clock) -> None:
    for _ in range(10):
        step(pace, clock, own=2.0)
    step(pace, clock, own=3600.0)
    assert own_seconds(pace) == pytest.approx(2.0)


def test_waits_of_other_threads_do_not_count(pace: StepPace, clock: Clock) -> None:
    with ThreadPoolExecutor(1) as saving:
        step(pace, clock, own=2.0)
        waiting = pace.waiting()
        saving.submit(waiting.__enter__).result()
        for _ in range(6):
            step(pace, clock, own=2.0)
        saving.submit(waiting.__exit__, None, None, None).result()
    assert own_seconds(pace) == pytest.approx(2.0)


def test_of_threads_that_take_turns_nothing_is_told(pace: StepPace, clock: Clock) -> None:
    with ThreadPoolExecutor(1) as other:
        for _ in range(10):
            step(pace, clock, own=2.0)
            other.submit(step, pace, clock, 2.0).result()
    assert pace.message() is None


def test_another_optimizer_does_not_end_a_step(pace: StepPace, clock: Clock) -> None:
    for _ in range(6):
        step(pace, clock, own=2.0)
        pace.step_ended("Adam")
    assert own_seconds(pace) == pytest.approx(2.0)


def test_steps_of_scheduled_functions_are_not_measured(pace: StepPace, clock: Clock) -> None:
    with running(ClosureIdentity(number=1)):
        for _ in range(10):
            step(pace, clock, own=2.0)
    assert pace.message() is None
