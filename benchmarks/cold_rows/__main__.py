"""`python -m benchmarks.cold_rows`: lookups and pushes over tables four times their memory.

Each step looks 4,096 ids up and takes a step of Adagrad over them; ids are drawn by Zipf's law with
the exponent 1.05. Contestants take turns, each in a process of its own: tables by themselves, and
those of a server that a client trains over gRPC. RocksDB takes part where `rocksdict` is installed.
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

from benchmarks.cold_rows.contestants import Measured
from benchmarks.harness.machine import load, machine
from benchmarks.harness.table import Table

_SERVERS = (
    "server, memory",
    "server, disk",
    "server, memory, lookahead",
    "server, disk, lookahead",
)


def _measured(name: str, rows: int, steps: int, folder: Path | None) -> Measured:
    module = "servers" if name in _SERVERS else "contestants"
    with TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", f"benchmarks.cold_rows.{module}"]
        told = subprocess.run(
            [*command, name, str(rows), str(steps), place], check=True, stdout=subprocess.PIPE
        )
    return Measured(*map(float, told.stdout.split()))


def main(
    rows: Annotated[int, typer.Option(help="Rows of the table, of 128 bytes each.")] = 2_000_000,
    steps: Annotated[int, typer.Option(help="Steps of a turn.")] = 200,
    turns: Annotated[int, typer.Option(help="Turns of each contestant.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="A folder on the disk.")] = None,
) -> None:
    """Measure and print a table."""
    print(machine(), f"load {load():.1f}", flush=True)
    names = ["memory", "disk"]
    if find_spec("rocksdict") is None:
        print("rocksdict is not installed, so RocksDB does not take part")
    else:
        names.append("rocksdict")
    found: dict[str, list[Measured]] = {name: [] for name in (*names, *_SERVERS)}
    for _ in range(turns):
        for name, each in found.items():
            each.append(_measured(name, rows, steps, folder))
    rates = {name: median([one.rate for one in each]) for name, each in found.items()}
    cells = []
    for name, each in found.items():
        base = "server, memory" if name in _SERVERS else "memory"
        if name.startswith("server") and "lookahead" in name:
            base = "server, memory, lookahead"
        most = max(one.most for one in each)
        missed = median([one.missed for one in each])
        row = [name, f"{rates[name]:.1f}", f"{rates[name] / rates[base]:.3f}"]
        cells.append([*row, f"{most:.0f}", f"{missed:.0f}" if missed else ""])
    of_disk = found["disk"]
    bound = median([one.reads / one.missed for one in of_disk])
    name = "bound: the disk's own random reads of as many pages at once"
    cells.append([name, f"{bound:.1f}", f"{bound / rates['memory']:.3f}", "", cells[1][-1]])
    head = ["rows in", "steps a second", "of memory", "most MB", "reads a step"]
    print(Table(head, cells).markdown())
    print(f"load {load():.1f}")


if __name__ == "__main__":
    typer.run(main)
