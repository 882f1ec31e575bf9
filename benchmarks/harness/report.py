"""What a measurement leaves behind: figures as JSON, tables as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Cell, Figure
from benchmarks.harness.goal import Goal
from benchmarks.harness.table import figures_table, goals_table

_JOINED = "report.md"
# Where reports are kept if nothing else is said.
FOLDER = Path("runs/benchmarks")


@dataclass(frozen=True)
class Report:
    """What one measurement found.

    Attributes:
        name: Of the measurement.
        figures: What contestants answered.
        goals: What is to be reached with these figures.
        machine: What they ran on, and how busy it was.
        failed: Why contestants did not answer, by their names.
    """

    name: str
    figures: Sequence[Figure]
    goals: Sequence[Goal]
    machine: Mapping[str, object]
    failed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def ratios(self) -> Mapping[Goal, float]:
        """What became of each goal whose figures are there."""
        found = {goal: goal.ratio(self.figures) for goal in self.goals}
        return {goal: ratio for goal, ratio in found.items() if ratio is not None}

    @property
    def fallen(self) -> Sequence[Goal]:
        """The goals that are below their floors, or whose figures are missing."""
        return [
            goal
            for goal in self.goals
            if goal.floor is not None and self.ratios.get(goal, 0.0) < goal.floor
        ]

    def markdown(self) -> str:
        """Return the figures and what became of the goals."""
        about = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        rounds = sorted({len(each.answers) for each in self.figures})
        counts = " or ".join(map(str, rounds))
        parts = [
            f"## {self.name}\n",
            figures_table(self.figures).markdown(),
            f"Medians (and spreads) of {counts} alternated runs; {about}.\n",
            *(f"Failed: {name}.\n" for name in self.failed),
        ]
        if self.ratios:
            parts.append(goals_table(self.ratios).markdown())
        return "\n".join(parts)

    def facts(self) -> Mapping[str, object]:
        """Return the same for JSON."""
        return {
            "machine": self.machine,
            "figures": list(map(_recorded, self.figures)),
            "ratios": {goal.name: ratio for goal, ratio in self.ratios.items()},
            "failed": self.failed,
        }

    def write(self, folder: Path) -> None:
        """Keep `<name>.json` and `<name>.md` in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        record = json.dumps(self.facts(), indent=2) + "\n"
        (folder / f"{self.name}.json").write_text(record)
        (folder / f"{self.name}.md").write_text(self.markdown())

    @classmethod
    def read(cls, folder: Path, name: str, goals: Sequence[Goal]) -> Report:
        """What `write` kept."""
        record = json.loads((folder / f"{name}.json").read_text())
        figures = [*map(_figure, record["figures"])]
        return cls(name, figures, goals, record["machine"], record["failed"])


def join(folder: Path) -> None:
    """Put the tables of all measurements of a folder on one page."""
    pages = sorted(page for page in folder.glob("*.md") if page.name != _JOINED)
    (folder / _JOINED).write_text("\n".join(page.read_text() for page in pages))


def _recorded(figure: Figure) -> Mapping[str, object]:
    return {
        "question": figure.cell.question,
        "contestant": figure.cell.contestant,
        "unit": figure.unit,
        "median": figure.median,
        "spread": figure.spread,
        "answers": figure.answers,
    }


def _figure(record: Mapping[str, Any]) -> Figure:
    cell = Cell(record["question"], record["contestant"])
    return Figure(cell, tuple(record["answers"]), record["unit"])
