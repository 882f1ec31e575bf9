"""When a backup stops to catch up."""

from __future__ import annotations

from stratagem_psserver.replication.standby import CatchingUp


def waiting_at_the_end(waiting: int, arrivals_per_record: float) -> int:
    """How many records wait once a backup has caught up, of which so many waited at first."""
    catching_up, applied = CatchingUp(), 0
    catching_up.begin(waiting)
    while not catching_up.is_over:
        applied += 1
        left = waiting - applied + int(applied * arrivals_per_record)
        catching_up.note_applied(left)
    return waiting - applied + int(applied * arrivals_per_record)


def test_little_is_not_waited_for() -> None:
    assert waiting_at_the_end(16, 1.0) == 16


def test_much_becomes_little_where_records_are_applied_faster_than_they_come() -> None:
    assert waiting_at_the_end(10_000, 0.4) <= 16


def test_it_comes_to_an_end_where_they_are_not() -> None:
    assert waiting_at_the_end(10_000, 1.0) == 10_000
    assert waiting_at_the_end(10_000, 0.8) == 8_000


def test_once_over_it_stays_over() -> None:
    catching_up = CatchingUp()
    catching_up.begin(0)
    catching_up.note_applied(1_000)
    assert catching_up.is_over


def applied_slowly(waiting: int, arrivals_per_record: float) -> int:
    """How many records are applied before there is no time left."""
    catching_up, applied = CatchingUp(), 0
    catching_up.begin(waiting)
    while catching_up.has_time:
        applied += 1
        catching_up.note_applied(waiting - applied + int(applied * arrivals_per_record))
    return applied


def test_the_first_round_has_time_where_little_comes_meanwhile() -> None:
    assert applied_slowly(1_000, 0.2) == 1_000


def test_it_has_none_any_more_once_much_has_come() -> None:
    assert applied_slowly(1_000, 1.0) == 250
    assert applied_slowly(1_000, 0.5) == 500


def test_nobody_is_slow_once_it_is_over() -> None:
    assert applied_slowly(10, 0.0) == 0
