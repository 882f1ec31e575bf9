"""`python -m benchmarks NAME...`: measures, prints tables, keeps the figures."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.goals import GOALS
from benchmarks.harness.environments import Foreign, missing
from benchmarks.harness.goal import Goal
from benchmarks.harness.programs import Programs
from benchmarks.harness.report import FOLDER, Report
from benchmarks.harness.table import goals_table
from benchmarks.measurements import MEASUREMENTS
from benchmarks.run import Run

_BUSY_LOAD = 1.0

console = Console(stderr=True)

Name = Enum("Name", {name: name for name in MEASUREMENTS}, type=str)  # type: ignore[misc]


def main(
    names: Annotated[
        list[Name] | None, typer.Argument(help="What to measure; by default all.")
    ] = None,
    peers: Annotated[
        list[Foreign] | None,
        typer.Option(help="Whom to measure beside ourselves and the limits; may be repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Alternated runs.")] = 7,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for the figures; {FOLDER}, or quick in it.")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Only ratios that were reached; fails below them.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each measurement.")
    ] = False,
) -> None:
    """Measures beside physical limits and peers, as ratios of one run.

    Exit code: 0 when all was measured; 1 if a contestant failed, or if --quick finds a ratio below
    what was reached before, or none.
    """
    start, load = time.monotonic(), os.getloadavg()[0]
    if load > _BUSY_LOAD:
        console.print(f"the load is {load:.1f}: ratios of small requests say little")
    folder = out or (FOLDER / "quick" if quick else FOLDER)
    run = Run(_there(peers or ()), rounds, quick, folder, console)
    reports: list[Report] = []
    with Programs() as programs:
        for name in names or Name:
            if report := run.measure(name.value, programs):
                reports.append(report)
                _print(report, as_json, quick)
    if quick and not as_json:
        _list_ratios(reports)
    console.print(f"took {time.monotonic() - start:.0f} s")
    if wrong := [*_wrong(reports, quick)]:
        raise SystemExit("; ".join(wrong))


def _print(report: Report, as_json: bool, quick: bool) -> None:
    if as_json:
        print(json.dumps({"name": report.name, **report.facts()}), flush=True)
    elif not quick:
        print(report.markdown(), flush=True)


def _there(peers: Collection[Foreign]) -> Collection[Foreign]:
    for peer in peers:
        if why := missing(peer):
            console.print(f"without {peer.value}: {why}")
    return [peer for peer in peers if not missing(peer)]


def _list_ratios(reports: Sequence[Report]) -> None:
    ratios = {goal: found for each in reports for goal, found in each.ratios.items()}
    print(goals_table(ratios).markdown())
    print("Without a floor, all or some, as benchmarks/reached.py says:")
    for what in dict.fromkeys(_described(goal) for goal in GOALS if not goal.kept):
        print(f"- {what}")


def _described(goal: Goal) -> str:
    return f"{goal.measurement}, {goal.about}: {goal.wording}"


def _wrong(reports: Sequence[Report], quick: bool) -> Sequence[str]:
    failed = [f"{name} failed" for each in reports for name in each.failed]
    fallen = [
        f"{goal.measurement}: {goal.name} is "
        + ("below its floor" if goal in each.ratios else "not measured")
        for each in reports
        for goal in each.fallen
        if quick
    ]
    return failed + fallen


def _is_program(name: str) -> bool:
    """Return whether `python -m benchmarks.NAME` is a program of its own."""
    return Path(__file__).with_name(name).joinpath("__main__.py").exists()


if __name__ == "__main__":
    if sys.argv[1:] and _is_program(sys.argv[1]):
        runpy.run_module(f"benchmarks.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
    else:
        # As from a terminal, so that no contestant is left behind.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        typer.run(main)
