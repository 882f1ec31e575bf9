"""Strangers cause few lines of a log, whatever they do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratagem_rpc.server_log import LineBudget

BURST, PER_SECOND = 5, 2.0


@given(st.lists(st.floats(0, 100), max_size=200))
def test_each_line_is_told_or_counted_and_few_are_told(moments: list[float]) -> None:
    budget = LineBudget(BURST, PER_SECOND)
    took = [budget.take(moment) for moment in sorted(moments)]
    told = [left_out for left_out in took if left_out is not None]
    last_told = max((i for i, each in enumerate(took) if each is not None), default=-1)
    assert len(told) + sum(told) == last_told + 1
    for first in range(len(took)):
        span = sorted(moments)[-1] - sorted(moments)[first]
        among = [each for each in took[first:] if each is not None]
        assert len(among) <= BURST + PER_SECOND * span + 1e-6


def test_who_comes_rarely_is_always_told_of() -> None:
    budget = LineBudget(BURST, PER_SECOND)
    assert [budget.take(number / PER_SECOND) for number in range(100)] == [0] * 100


def test_a_burst_is_counted_by_the_next_line() -> None:
    budget = LineBudget(BURST, PER_SECOND)
    assert [budget.take(1.0) for _ in range(9)] == [0] * BURST + [None] * 4
    assert budget.take(1.5) == 4
    budget.refill()
    assert [budget.take(1.5) for _ in range(BURST)] == [0] * BURST
