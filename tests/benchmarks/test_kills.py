"""What the benchmark of kills finds wrong."""

from __future__ import annotations

from benchmarks.kills.counting import differences


def test_what_was_acknowledged_has_to_be_there_once() -> None:
    assert differences([3, 4], known=[3, 4], most=0) == []
    assert differences([2, 4], known=[3, 4], most=0) == ["lost 1 of a counter"]
    assert differences([3, 6], known=[3, 4], most=0) == ["doubled 2 of a counter"]


def test_what_was_not_answered_may_be_there_once() -> None:
    assert differences([3, 5], known=[3, 4], most=1) == []
    assert differences([3, 6], known=[3, 4], most=1) == ["doubled 1 of a counter"]
