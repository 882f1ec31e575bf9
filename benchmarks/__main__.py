"""`python -m benchmarks NAME`: measures, prints a table, keeps the figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from benchmarks.harness.report import Report
from benchmarks.measurements import scheduling, steps, transfer

app = typer.Typer(add_completion=False, no_args_is_help=True)
console = Console()

Rounds = Annotated[int, typer.Option(min=3, help="Alternated runs of each.")]
Out = Annotated[Path, typer.Option(help="Folder for the figures.")]
_OUT = Path("runs/benchmarks")


class CoordinatorPeer(str, Enum):
    """Coordinators to be measured beside ours."""

    TENSORFLOW = "tensorflow"


@app.callback()
def benchmarks() -> None:
    """Measurements beside physical limits and peers, as ratios of one run."""


@app.command("transfer")
def run_transfer(rounds: Rounds = 9, out: Out = _OUT) -> None:
    """Push + SGD and pull at 0.1 to 100 MB beside a raw TCP socket and a memcpy."""
    with _reporting() as report:
        rows = transfer.measure(transfer.SIZES, rounds, report)
    _keep(Report("transfer", rounds, rows, transfer.table(rows)), out)


@app.command("steps")
def run_steps(rounds: Rounds = 15, out: Out = _OUT) -> None:
    """Training steps with overlap and with clip_norm, beside steps without."""
    with _reporting() as report:
        rows = steps.measure(steps.COMPARISONS, rounds, report)
    _keep(Report("steps", rounds, rows, steps.table(rows)), out)


@app.command("scheduling")
def run_scheduling(
    peers: Annotated[
        list[CoordinatorPeer] | None,
        typer.Option(help="Whose coordinators to measure beside ours."),
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=1, help="Numbers of worker servers.")
    ] = None,
    rounds: Rounds = 7,
    tensorflow_python: Annotated[
        Path,
        typer.Option(
            envvar="TENSORFLOW_PYTHON", help="Interpreter that has TensorFlow."
        ),
    ] = Path(".venv-tensorflow/bin/python"),
    out: Out = _OUT,
) -> None:
    """Closures per second, and the round trip of one, on 1, 2 and 4 worker servers."""
    extent = scheduling.Extent(workers or (1, 2, 4), rounds)
    pythons = {scheduling.OURS: Path(sys.executable)}
    if CoordinatorPeer.TENSORFLOW in (peers or ()):
        # Not resolved: a link's own place tells which environment it is of.
        pythons["tensorflow"] = tensorflow_python.absolute()
    with _reporting() as report:
        rows = scheduling.measure(extent, pythons, report)
    _keep(Report("scheduling", rounds, rows, scheduling.table(rows)), out)


@contextmanager
def _reporting() -> Iterator[Callable[[str], None]]:
    """What shows on the terminal what is measured."""
    with console.status("starting") as status:
        yield lambda what: status.update(f"measuring {what}")


def _keep(report: Report, folder: Path) -> None:
    console.print(Markdown(report.write(folder)))


if __name__ == "__main__":
    app()
