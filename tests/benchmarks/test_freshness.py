"""How soon answers have steps."""

from __future__ import annotations

import pytest

from benchmarks.freshness.__main__ import delays


def test_a_step_waits_for_the_first_answer_that_has_it() -> None:
    # Steps of the second window are counted, though nothing is published there.
    windows = [[[1.0, 2.0], [3.0], [4.0]], [[1.5], [], [5.0]]]
    seen = [(1.25, [1.0, 0.0]), (2.5, [2.0, 1.0]), (4.5, [4.0, 1.0])]
    assert delays(windows, seen) == pytest.approx([0.25, 0.5, 0.5, 1.0])
