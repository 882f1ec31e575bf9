"""`python -m benchmarks transfer`: measures, prints a table, keeps the figures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import transfer
from benchmarks.ratios import machine

app = typer.Typer(add_completion=False, no_args_is_help=True)
console = Console()


@app.callback()
def benchmarks() -> None:
    """Measurements beside physical limits, as ratios of one run."""


@app.command("transfer")
def run_transfer(
    rounds: Annotated[int, typer.Option(min=3, help="Alternated runs of each.")] = 9,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path(
        "runs/benchmarks"
    ),
) -> None:
    """Push + SGD and pull at 0.1 to 100 MB beside a raw TCP socket and a memcpy."""
    with console.status("starting") as status:
        rows = transfer.measure(
            transfer.SIZES, rounds, lambda what: status.update(f"measuring {what}")
        )
    measured_on = machine()
    record = {"machine": measured_on, "rounds": rounds, "rows": list(map(asdict, rows))}
    out.mkdir(parents=True, exist_ok=True)
    (out / "transfer.json").write_text(json.dumps(record, indent=2) + "\n")
    console.print(_table(rows))
    console.print(", ".join(f"{key} {value}" for key, value in measured_on.items()))


def _table(rows: Iterable[transfer.Row]) -> Table:
    table = Table("", "MB", "GB/s", "spread", "of a socket", "of a memcpy")
    for row in rows:
        figures = (row.gb_per_second, row.spread, row.of_socket, row.of_memcpy)
        cells = (f"{figure:.2f}" for figure in figures)
        table.add_row(row.direction, f"{row.nbytes / 1e6:g}", *cells)
    return table


if __name__ == "__main__":
    app()
