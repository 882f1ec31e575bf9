"""Which run of a server has recorded a change, and whether the change is there."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import InvalidArgumentError, SessionLostError
from stratagem_psserver.log.changes import History

A, B, C, D = (bytes([number]) * 8 for number in range(1, 5))


def told(run: bytes, position: int) -> bytes:
    return run + position.to_bytes(8, "big")


def led_by(*runs: tuple[bytes, int]) -> History:
    history = History()
    for run, after in runs:
        history.begin(run, after)
    return history


def again(history: History) -> History:
    """What an image of it leads to."""
    other = History()
    other.restore(history.facts())
    return other


def knows(history: History, shown: bytes) -> bool:
    try:
        history.require(shown, "/job:ps/task:0")
    except SessionLostError as error:
        assert "/job:ps/task:0 has lost changes" in error.message
        return False
    return True


def test_a_change_is_that_of_the_run_that_has_recorded_it() -> None:
    history = led_by((A, 0), (B, 10))
    # Of the second run, nothing may be on disk yet.
    assert history.reached(10) == told(A, 10)
    assert history.reached(11) == told(B, 11)


def test_a_server_that_has_recorded_nothing_tells_nothing() -> None:
    assert led_by((A, 0)).reached(0) == b""
    assert History().reached(5) == b""


def test_what_a_run_had_recorded_when_the_next_one_began_is_there() -> None:
    history = again(led_by((A, 0), (B, 10)))
    history.begin(C, 20)
    shown = [told(A, 10), told(A, 11), told(B, 20), told(B, 21), told(C, 99), told(D, 1)]
    assert [knows(history, each) for each in shown] == [True, False, True, False, True, False]


def test_an_older_copy_that_has_grown_again_lacks_what_it_had() -> None:
    copy = led_by((A, 0))
    history = again(copy)
    history.begin(C, 10)
    assert history.reached(500) == told(C, 500)
    assert not knows(history, told(A, 12))
    assert not knows(history, told(B, 12))


def test_a_run_that_has_recorded_nothing_is_forgotten() -> None:
    history = led_by((A, 0), (B, 10), (C, 10))
    assert knows(history, told(A, 10))
    assert not knows(history, told(B, 10))


def test_runs_are_known_by_segments_as_well() -> None:
    history = History()
    history.note(B, 10)
    history.note(A, 0)
    history.note(A, 0)
    history.note(b"", 0)
    history.begin(C, 20)
    assert knows(history, told(A, 10))
    assert not knows(history, told(A, 11))


def test_an_image_without_a_log_is_older_than_one_of_a_later_run() -> None:
    first = History()
    first.begin_unrecorded(A)
    second = again(first)
    second.begin_unrecorded(B)
    assert knows(second, first.reached(0))
    copy = again(first)
    copy.begin_unrecorded(C)
    assert not knows(copy, second.reached(0))


def test_two_changes_may_be_shown_and_no_other_number_of_bytes() -> None:
    history = led_by((A, 0), (B, 10))
    assert knows(history, told(B, 11) + told(A, 10))
    assert not knows(history, told(B, 11) + told(A, 11))
    for shown in (told(A, 10)[:-1], told(A, 10) * 3, b"x"):
        with pytest.raises(InvalidArgumentError, match="takes 16 bytes"):
            history.require(shown, "a server")


def test_few_enough_runs_are_remembered() -> None:
    history = led_by(*((number.to_bytes(8, "big"), number) for number in range(5000)))
    assert len(history.facts()) == 4096
    assert not knows(history, told((0).to_bytes(8, "big"), 1))
