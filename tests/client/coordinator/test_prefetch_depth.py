"""How many closures a worker should have at a time."""

from __future__ import annotations

import pytest

from stratagem._coordinator.workers import (
    DEEPEST,
    SHALLOWEST,
    PrefetchDepth,
)


def run(pace: PrefetchDepth, seconds: float, times: int = 200) -> int:
    """The depth after that many closures that took so long, one after another."""
    for number in range(times):
        pace.gave(number * seconds)
        pace.ended((number + 1) * seconds)
    return pace.depth


def test_nothing_is_known_at_first() -> None:
    assert PrefetchDepth().depth == SHALLOWEST


@pytest.mark.parametrize(("seconds", "depth"), [(1.0, SHALLOWEST), (0.002, 10), (0.0001, DEEPEST)])
def test_a_worker_has_work_for_20_ms(seconds: float, depth: int) -> None:
    assert run(PrefetchDepth(), seconds) == pytest.approx(depth, abs=1)


def test_one_long_closure_is_enough_to_have_few() -> None:
    pace = PrefetchDepth()
    run(pace, 0.0001)
    pace.gave(10.0)
    pace.ended(11.0)
    assert pace.depth == SHALLOWEST


def test_the_time_that_a_worker_waits_does_not_count() -> None:
    pace = PrefetchDepth()
    for start in range(200):
        pace.gave(float(start))
        pace.ended(start + 0.0001)
    assert pace.depth == DEEPEST


def test_results_that_come_together_share_their_time() -> None:
    pace = PrefetchDepth()
    for batch in range(20):
        for _ in range(10):
            pace.gave(batch * 0.02)
        for _ in range(10):
            pace.ended((batch + 1) * 0.02)
    assert pace.depth > 5
