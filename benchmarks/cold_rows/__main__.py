"""`python -m benchmarks.cold_rows`: lookups and pushes over tables four times their memory.

Each step looks 4,096 ids up and takes a step of Adagrad over them; ids are drawn by Zipf's law with
the exponent 1.05. Contestants take turns, each in a process of its own. RocksDB takes part where
`rocksdict` is installed.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.harness.machine import load, machine
from benchmarks.harness.table import Table


def _measured(name: str, rows: int, steps: int, folder: Path | None) -> tuple[float, float]:
    with TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "benchmarks.cold_rows.contestants"]
        told = subprocess.run(
            [*command, name, str(rows), str(steps), place], check=True, stdout=subprocess.PIPE
        )
    rate, most = map(float, told.stdout.split())
    return rate, most


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table, of 128 bytes each.")] = 2_000_000,
    steps: Annotated[int, typer.Option(help="Steps of a turn.")] = 200,
    turns: Annotated[int, typer.Option(help="Turns of each contestant.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="A folder on the disk.")] = None,
) -> None:
    """Measure and print a table."""
    print(machine(), f"load {load():.1f}", flush=True)
    names = ["memory", "files", "files, announced"]
    if find_spec("rocksdict") is None:
        print("rocksdict is not installed, so RocksDB does not take part")
    else:
        names.append("rocksdict")
    rates: dict[str, list[float]] = {name: [] for name in names}
    mosts = dict.fromkeys(names, 0.0)
    for _ in range(turns):
        for name in names:
            rate, most = _measured(name, rows, steps, folder)
            rates[name].append(rate)
            mosts[name] = max(mosts[name], most)
    in_memory = median(rates["memory"])
    cells = [
        [name, f"{median(each):.1f}", f"{median(each) / in_memory:.3f}", f"{mosts[name]:.0f}"]
        for name, each in rates.items()
    ]
    print(Table(["rows in", "steps a second", "of memory", "most MB"], cells).markdown())
    print(f"load {load():.1f}")


if __name__ == "__main__":
    typer.run(main)
