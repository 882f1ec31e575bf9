"""What contestants answered."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """Where a figure stands.

    Attributes:
        question: Name of the question.
        contestant: Name of the contestant.
    """

    question: str
    contestant: str


@dataclass(frozen=True)
class Figure:
    """What one contestant answered to one question.

    Attributes:
        cell: The contestant and the question.
        answers: One for each round, in seconds or bytes; at least two.
        unit: What tables show them in.
    """

    cell: Cell
    answers: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """The middle answer."""
        return statistics.median(self.answers)

    @property
    def spread(self) -> float:
        """Range from the first to the third quartile, relative to the median."""
        first, _, third = statistics.quantiles(self.answers, n=4)
        return (third - first) / self.median if self.median else 0.0
