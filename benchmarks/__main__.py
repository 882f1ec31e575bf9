"""`python -m benchmarks NAME...`: measures, prints tables, keeps the figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.goals import GOALS, Goal
from benchmarks.harness.contest import Cell, Contest, hold
from benchmarks.harness.environments import Foreign, missing
from benchmarks.harness.plots import plot
from benchmarks.harness.report import Report
from benchmarks.measurements import MEASUREMENTS

_OUT = Path("runs/benchmarks")
_QUICK_ROUNDS = 5

console = Console(stderr=True)

Name = Enum("Name", {name: name for name in MEASUREMENTS}, type=str)  # type: ignore[misc]


def main(
    names: Annotated[
        list[Name] | None, typer.Argument(help="What to measure; by default all.")
    ] = None,
    peers: Annotated[
        list[Foreign] | None,
        typer.Option(help="Whom to measure beside ourselves and the limits."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Alternated runs.")] = 7,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = _OUT,
    quick: Annotated[
        bool, typer.Option(help="Only what has a floor; fails below it.")
    ] = False,
) -> None:
    """Measures beside physical limits and peers, as ratios of one run."""
    chosen = _there(peers or ())
    fallen: list[Goal] = []
    for name in names or Name:
        contests = [each.among(chosen) for each in MEASUREMENTS[name.value]()]
        if quick:
            contests = [each.about(_kept(name.value)) for each in contests]
        report = _measured(name.value, contests, _QUICK_ROUNDS if quick else rounds)
        if report.figures:
            report.write(out)
            plot(name.value, report.figures, out)
            print(report.markdown())
        fallen += report.fallen
    for goal in fallen:
        console.print(f"below its floor: {goal.name}")
    raise typer.Exit(bool(quick and fallen))


def _there(peers: Collection[Foreign]) -> Collection[Foreign]:
    for peer in peers:
        if why := missing(peer):
            console.print(f"without {peer.value}: {why}")
    return [peer for peer in peers if not missing(peer)]


def _kept(name: str) -> Collection[Cell]:
    """The figures that goals with floors need."""
    return {
        cell
        for goal in GOALS
        if goal.measurement == name and goal.floor is not None
        for cell in goal.cells
    }


def _measured(name: str, contests: Sequence[Contest], rounds: int) -> Report:
    with _reporting() as report:
        figures = [
            figure for contest in contests for figure in hold(contest, rounds, report)
        ]
    return Report.of(name, rounds, figures)


@contextmanager
def _reporting() -> Iterator[Callable[[str], None]]:
    """What shows on the terminal what is measured."""
    with console.status("starting") as status:
        yield lambda what: status.update(f"measuring {what}")


if __name__ == "__main__":
    typer.run(main)
