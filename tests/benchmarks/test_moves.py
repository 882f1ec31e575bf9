"""What a curve of steps says of moves."""

from __future__ import annotations

import pytest

from benchmarks.moves.curve import Move, drawn, longest_pause, lowest_rate, rate

# Ten in a second, but for a pause of two seconds.
STEPS = [number / 10 for number in range(600) if not 200 <= number < 220]


@pytest.mark.parametrize(
    ("began", "ended", "lowest", "pause"), [(18.0, 30.0, 6.0, 2.1), (21.0, 21.5, 8.0, 0.5)]
)
def test_the_worst_seconds_of_a_move_are_found(
    began: float, ended: float, lowest: float, pause: float
) -> None:
    move = Move("drain server 0", began, ended, 1)
    assert rate(STEPS, 5.0, 10.0) == pytest.approx(10.0)
    assert lowest_rate(STEPS, move) == pytest.approx(lowest, abs=0.5)
    assert longest_pause(STEPS, move) == pytest.approx(pause)


def test_a_picture_has_all_moves() -> None:
    moves = [Move("drain server 0", 18.0, 30.0, 1), Move("add server 2", 40.0, 41.0, 2)]
    (axes,) = drawn(STEPS, moves).axes
    assert [text.get_text() for text in axes.texts] == [
        "drain server 0 (1 tasks)",
        "add server 2 (2 tasks)",
    ]
