"""`python -m benchmarks NAME...`: measures, prints tables, keeps the figures."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.goals import GOALS
from benchmarks.harness.contest import Cell, Contest, Figure, hold
from benchmarks.harness.environments import Foreign, missing, versions
from benchmarks.harness.machine import machine
from benchmarks.harness.plots import plot
from benchmarks.harness.report import Report
from benchmarks.measurements import MEASUREMENTS

_OUT = Path("runs/benchmarks")
_QUICK_ROUNDS = 5
_BUSY_LOAD = 1.0

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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each measurement.")
    ] = False,
) -> None:
    """Measures beside physical limits and peers, as ratios of one run.

    Exit code: 0 when all was measured, 1 if --quick finds a ratio below what was
    reached before.
    """
    if os.getloadavg()[0] > _BUSY_LOAD:
        console.print("others use this machine: ratios of small requests say little")
    chosen = _there(peers or ())
    rounds = _QUICK_ROUNDS if quick else rounds
    reports: list[Report] = []
    for name in names or Name:
        contests = [each.among(chosen) for each in MEASUREMENTS[name.value]()]
        if quick:
            contests = [each.about(_kept(name.value)) for each in contests]
        about = machine() | versions(chosen)
        figures = _measured(contests, rounds)
        if figures:
            reports.append(Report(name.value, rounds, figures, about))
            _keep(reports[-1], out)
            _print(reports[-1], as_json)
    _summarize(reports, out)
    if quick and not as_json:
        _list_what_is_left()
    fallen = [goal.name for each in reports for goal in each.fallen]
    if quick and fallen:
        raise SystemExit(f"below their floors: {'; '.join(fallen)}")


def _list_what_is_left() -> None:
    print("Goals without a floor, as they were not reached yet:")
    for goal in GOALS:
        if goal.floor is None:
            print(f"- {goal.measurement}: {goal.name}, at least {goal.at_least:.2f}")


def _keep(report: Report, folder: Path) -> None:
    report.write(folder)
    plot(report.name, report.figures, folder)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"name": report.name, **report.facts()}), flush=True)
    else:
        print(report.markdown(), flush=True)


def _summarize(reports: Sequence[Report], folder: Path) -> None:
    """Keep all that was found on one page."""
    page = "\n".join(report.markdown() for report in reports)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(page)


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


def _measured(contests: Sequence[Contest], rounds: int) -> Sequence[Figure]:
    with _reporting() as report:
        return [each for contest in contests for each in hold(contest, rounds, report)]


@contextmanager
def _reporting() -> Iterator[Callable[[str], None]]:
    """What shows on the terminal what is measured."""
    with console.status("starting") as status:
        yield lambda what: status.update(f"measuring {what}")


if __name__ == "__main__":
    # As from a terminal, so that no contestant is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)
