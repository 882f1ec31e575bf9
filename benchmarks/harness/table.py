"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.figures import Cell, Figure
from benchmarks.harness.goal import Goal

_PER_BASE_UNIT: Mapping[str, float] = {"": 1, "s": 1, "ms": 1e3, "us": 1e6, "MB": 1e-6}


@dataclass(frozen=True)
class Table:
    """Figures as people read them.

    Attributes:
        columns: Their names.
        rows: The cells, as many in each row as there are columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return it as a Markdown table."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def figures_table(figures: Sequence[Figure]) -> Table:
    """A row for each question, a column for each contestant; medians and spreads."""
    contestants = list(dict.fromkeys(each.cell.contestant for each in figures))
    found = {each.cell: each for each in figures}
    units = {each.cell.question: each.unit for each in figures}
    rows = []
    for question, unit in units.items():
        cells = (_shown(found.get(Cell(question, each))) for each in contestants)
        rows.append([f"{question}, {unit}", *cells])
    return Table(["", *contestants], rows)


def median_with_unit(figure: Figure) -> str:
    """The median as it is read, such as "21 MB"."""
    return f"{_median(figure)} {figure.unit}"


def _shown(figure: Figure | None) -> str:
    return f"{_median(figure)} ({figure.spread:.2f})" if figure else ""


def _median(figure: Figure) -> str:
    rounded = float(f"{figure.median * _PER_BASE_UNIT[figure.unit]:.3g}")
    return f"{rounded:,.10g}"  # not 1.24e+03


def goals_table(ratios: Mapping[Goal, float]) -> Table:
    """A row for each goal: the ratio that was measured, its floor and the goal."""
    rows = [
        [
            goal.name,
            f"{ratio:.2f}",
            f"{goal.at_least:.2f}",
            "reached" if ratio >= goal.at_least else "**missed**",
            "" if goal.floor is None else f"{goal.floor:.2f}",
        ]
        for goal, ratio in ratios.items()
    ]
    return Table(["", "ratio", "goal", "", "floor"], rows)
