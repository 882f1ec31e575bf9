"""Ends of closures that a coordinator reports to servers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratagem._coordinator.shared_dataset import Ended, Inherited, OpenClosures

BEGUN = range(1, 40)


@given(st.sets(st.sampled_from(BEGUN)), st.lists(st.sampled_from(BEGUN), unique=True))
def test_all_that_has_ended_is_told_and_nothing_else(left_out: set[int], ending: list[int]) -> None:
    """Numbers that were left out, for what is no closure, may count as ended."""
    unended, ended = OpenClosures(), set[int]()
    for number in BEGUN:
        if number not in left_out:
            unended.begin(number)
    for number in ending:
        if number not in left_out:
            unended.end(number)
            ended.add(number)
        told = unended.ended
        found = {one for one in BEGUN if one <= told.through} - {*told.unended}
        assert found - left_out == ended


def test_what_has_ended_in_order_takes_a_single_number() -> None:
    unended = OpenClosures()
    for number in range(1, 1000):
        unended.begin(number)
    for number in range(1, 900):
        unended.end(number)
    assert unended.ended == Ended(899, ())


def test_of_a_coordinator_that_leaves_all_but_what_has_not_ended_has() -> None:
    unended = OpenClosures()
    for number in (1, 2, 5):
        unended.begin(number)
    unended.end(2)
    assert unended.ended_for_good == Ended(2**64 - 1, (1, 5))


def test_of_a_coordinator_that_was_lost_all_but_what_was_inherited_has_ended() -> None:
    inherited = Inherited([7, 3])
    assert inherited.ended == Ended(2**64 - 1, (3, 7))
    inherited.end(3)
    inherited.end(3)
    assert inherited.ended.unended == (7,)
