"""`python -m benchmarks transfer`: measures, prints a table, keeps the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import transfer
from benchmarks.ratios import machine

app = typer.Typer(add_completion=False, no_args_is_help=True)
console = Console()
Rows = list[dict[str, object]]


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
        rows = transfer.measure(rounds, lambda what: status.update(f"measuring {what}"))
    out.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine(), "rounds": rounds, "rows": rows}
    (out / "transfer.json").write_text(json.dumps(record, indent=2) + "\n")
    console.print(_table(rows))
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


def _table(rows: Rows) -> Table:
    table = Table(*rows[0], title="transfer")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    app()
