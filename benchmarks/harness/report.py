"""What a measurement leaves behind: figures as JSON, tables as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.goals import GOALS, Goal
from benchmarks.harness.contest import Figure
from benchmarks.harness.table import figures_table, goals_table


@dataclass(frozen=True)
class Report:
    """What one measurement found.

    Attributes:
        name: Of the measurement.
        rounds: Alternated answers of each contestant.
        figures: What they answered.
        machine: What they ran on, and how busy it was before.
    """

    name: str
    rounds: int
    figures: Sequence[Figure]
    machine: Mapping[str, object]

    @cached_property
    def ratios(self) -> Mapping[Goal, float]:
        """What became of each goal whose figures are there."""
        found = {
            goal: goal.ratio(self.figures)
            for goal in GOALS
            if goal.measurement == self.name
        }
        return {goal: ratio for goal, ratio in found.items() if ratio is not None}

    @property
    def fallen(self) -> Sequence[Goal]:
        """The goals that were reached once and are below their floors now."""
        return [
            goal
            for goal, ratio in self.ratios.items()
            if goal.floor is not None and ratio < goal.floor
        ]

    def markdown(self) -> str:
        """Return the figures and what became of the goals."""
        about = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        parts = [
            f"## {self.name}\n",
            figures_table(self.figures).markdown(),
            f"Medians (and spreads) of {self.rounds} alternated runs; {about}.\n",
        ]
        if self.ratios:
            parts.append(goals_table(self.ratios).markdown())
        return "\n".join(parts)

    def facts(self) -> Mapping[str, object]:
        """Return the same for JSON."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "figures": list(map(asdict, self.figures)),
            "ratios": {goal.name: ratio for goal, ratio in self.ratios.items()},
        }

    def write(self, folder: Path) -> None:
        """Keep `<name>.json` and `<name>.md` in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        record = json.dumps(self.facts(), indent=2) + "\n"
        (folder / f"{self.name}.json").write_text(record)
        (folder / f"{self.name}.md").write_text(self.markdown())
