"""What is to be reached, as a ratio of figures from the same run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmarks.harness.figures import Cell, Figure


@dataclass(frozen=True)
class Goal:
    """By how much a figure is to be better than another, or than a number.

    Attributes:
        measurement: Name of the measurement that has the figures.
        ours: The figure, of which less is better.
        theirs: What it is compared with.
        at_least: The least ratio of theirs to ours.
        about: What it is about. A table for readers has those of one measurement that are about the
            same and have the same wording in one row.
        wording: What is asked for, in words.
        kept: Whether it was reached, so that it may not be missed again.
    """

    measurement: str
    ours: Cell
    theirs: Cell | float
    at_least: float
    about: str
    wording: str
    kept: bool = False

    @property
    def name(self) -> str:
        """What it is listed by, unlike that of any other of its measurement."""
        ours = f"{self.ours.contestant}, {self.ours.question}"
        if isinstance(self.theirs, float):
            return f"{ours}: of {self.theirs:,.10g}"
        who = self.theirs.contestant
        if who == self.ours.contestant:
            who = self.theirs.question
        return f"{ours}: of {who}"

    @property
    def floor(self) -> float | None:
        """The least ratio that is accepted; None as long as it was not reached."""
        return self.at_least if self.kept else None

    @property
    def cells(self) -> Collection[Cell]:
        """The figures that it takes."""
        return {self.ours} if isinstance(self.theirs, float) else {self.ours, self.theirs}

    def ratio(self, figures: Sequence[Figure]) -> float | None:
        """Theirs over ours; None if either was not measured.

        It is the median of the ratios of all rounds: a change of the machine's load meets both
        answers of a round alike.
        """
        found = {each.cell: each.answers for each in figures}
        ours = found.get(self.ours, ())
        theirs = (
            [self.theirs] * len(ours)
            if isinstance(self.theirs, float)
            else found.get(self.theirs, ())
        )
        ratios = [them / us if us > 0 else math.inf for them, us in zip(theirs, ours, strict=False)]
        return statistics.median(ratios) if ratios else None
