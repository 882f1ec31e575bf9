"""The benchmarks measure what they say; how fast it is, no test says."""

from __future__ import annotations

from benchmarks import transfer
from benchmarks.ratios import Timing, alternate


def test_both_directions_are_measured_beside_the_limits() -> None:
    reported: list[str] = []
    rows = transfer.measure([4_000, 2_000_000], rounds=3, report=reported.append)
    assert reported == ["0.004 MB", "2 MB"]
    measured = [(row.direction, row.nbytes) for row in rows]
    assert measured == [
        ("push + SGD", 4_000),
        ("pull", 4_000),
        ("push + SGD", 2_000_000),
        ("pull", 2_000_000),
    ]
    for row in rows:
        assert row.of_memcpy > 0
        assert row.of_socket > 0


def test_contestants_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []
    timings = alternate(
        {"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, rounds=3
    )
    assert "".join(turns) == "abababab"
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3]


def test_a_timing_is_summed_up_by_median_and_relative_spread() -> None:
    timing = Timing((1.0, 2.0, 3.0, 4.0, 10.0))
    assert timing.median == 3.0
    assert timing.spread == (7.0 - 1.5) / 3.0
