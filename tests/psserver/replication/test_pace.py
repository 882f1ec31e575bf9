"""The pace at which an image is sent."""

from __future__ import annotations

from stratagem_psserver.replication.exchange import Pace


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_it_waits_for_as_long_as_the_bytes_may_take() -> None:
    clock = Hands()
    pace = Pace(1000, clock)
    assert pace.wait_after(500) == 0.5
    clock.now += 0.5
    assert pace.wait_after(500) == 0.5


def test_what_follows_at_once_waits_for_what_was_before() -> None:
    pace = Pace(1000, Hands())
    assert [pace.wait_after(500), pace.wait_after(500)] == [0.5, 1.0]


def test_what_sending_takes_counts() -> None:
    clock = Hands()
    pace = Pace(1000, clock)
    clock.now += 0.25
    assert pace.wait_after(500) == 0.25


def test_a_long_time_in_which_little_was_sent_is_not_made_up_for() -> None:
    clock = Hands()
    pace = Pace(1000, clock)
    clock.now += 100.0
    assert pace.wait_after(500) == 0.0
    assert pace.wait_after(500) == 0.5


def test_there_may_be_none() -> None:
    assert Pace(0, Hands()).wait_after(1 << 40) == 0.0
