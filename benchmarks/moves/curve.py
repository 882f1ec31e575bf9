"""Steps over time, with the moves among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib import figure

# The seconds over which rates are taken.
WINDOW = 5.0


class Move(NamedTuple):
    """Tasks that moved.

    Attributes:
        name: Why.
        began: When, in seconds.
        ended: When the last one had moved, and all clients knew.
        tasks: How many.
    """

    name: str
    began: float
    ended: float
    tasks: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


def rate(steps: Sequence[float], begin: float, end: float) -> float:
    """Return the steps in a second between two moments; steps are in order."""
    first, last = np.searchsorted(steps, [begin, end])
    return float(last - first) / (end - begin)


def lowest_rate(steps: Sequence[float], move: Move) -> float:
    """Return the steps in a second of the worst window of a move, or of the one at its begin."""
    begins = np.arange(move.began, max(move.began, move.ended - WINDOW) + 0.1, 0.1)
    return min(rate(steps, begin, begin + WINDOW) for begin in begins)


def longest_pause(steps: Sequence[float], move: Move) -> float:
    """Return the longest time in a move without a step, in seconds."""
    within = [step for step in steps if move.began <= step <= move.ended]
    return float(np.diff([move.began, *within, move.ended]).max())


def drawn(steps: Sequence[float], moves: Sequence[Move]) -> figure.Figure:
    """Return a picture of the steps of each second, with the times of moves marked."""
    picture = figure.Figure(figsize=(14, 5), layout="constrained")
    axes = picture.subplots()
    times = np.asarray(steps) - steps[0]
    axes.hist(times, bins=range(int(times[-1]) + 2), color="tab:blue", alpha=0.6)
    for move in moves:
        begin, end = move.began - steps[0], move.ended - steps[0]
        axes.axvspan(begin, end, color="tab:orange", alpha=0.3)
        label = f"{move.name} ({move.tasks} tasks)"
        axes.text(begin, 1.0, label, rotation=90, va="top", transform=axes.get_xaxis_transform())
    axes.set(xlabel="seconds", ylabel="steps in a second", xlim=(0, None))
    return picture
