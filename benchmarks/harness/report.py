"""What a measurement leaves behind: figures as JSON, a table as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import machine


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


@dataclass(frozen=True)
class Report:
    """What one measurement found.

    Attributes:
        name: Of the measurement.
        rounds: Alternated runs of each contestant.
        rows: The figures: dataclasses.
        table: What of it is shown.
    """

    name: str
    rounds: int
    rows: Sequence[Any]
    table: Table

    def write(self, folder: Path) -> str:
        """Keep `<name>.json` and `<name>.md` in a folder, and return the latter."""
        measured_on = machine()
        about = ", ".join(f"{key} {value}" for key, value in measured_on.items())
        text = f"{self.table.markdown()}\nMedians of {self.rounds} runs; {about}.\n"
        record = {
            "machine": measured_on,
            "rounds": self.rounds,
            "rows": list(map(asdict, self.rows)),
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(record, indent=2) + "\n")
        (folder / f"{self.name}.md").write_text(text)
        return text
