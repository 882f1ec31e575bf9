"""Contestants that take turns, and what their figures are summed up by."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The figures of one contestant's runs, such as durations in seconds."""

    figures: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle figure."""
        return statistics.median(self.figures)

    @property
    def spread(self) -> float:
        """Range from the first to the third quartile, relative to the median."""
        first, _, third = statistics.quantiles(self.figures, n=4)
        return (third - first) / self.median


def alternate(
    contestants: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, Sample]:
    """Runs each contestant once a round, after one round of warming up.

    Runs alternate so that a change of the machine's load meets all of them.

    Args:
        contestants: By name, what runs once and returns a figure.
        rounds: How many of their figures count.
    """
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for warm in [False] + [True] * rounds:
        for name, run in contestants.items():
            figure = run()
            if warm:
                figures[name].append(figure)
    return {name: Sample(tuple(values)) for name, values in figures.items()}
