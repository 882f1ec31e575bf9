"""`python -m benchmarks.page`: puts what was measured into docs/performance.md.

What goes between `<!-- NAME -->` and `<!-- end -->` is replaced, for each of `tables`. `make
format` then breaks the lines of the page. The page's picture of throughput is replaced, too.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from benchmarks.goals import GOALS
from benchmarks.harness.figures import Cell
from benchmarks.harness.goal import Goal
from benchmarks.harness.report import FOLDER, Report
from benchmarks.harness.table import Table, figures_table, median_with_unit
from benchmarks.measurements import MEASUREMENTS
from benchmarks.measurements.capacity import COST, FULL, WORKERS
from benchmarks.profiles.names import Name

_PAGE = Path("docs/performance.md")
_MARK, _END = "<!-- {} -->\n", "<!-- end -->"
_ABSENT = "not measured"
_CURVE = "scaling.svg"
# What programs of their own leave behind.
_PROGRAMS = {name: f"{name}.md" for name in ("scaling", "crowds")}
_TITLE = re.compile(r"^## .*\n+")

Reports: TypeAlias = Mapping[str, Report]


def tables(folder: Path) -> dict[str, str]:
    """What goes where, of the results that are in a folder."""
    reports = _reports(folder)
    found = {"goals": goals(reports).markdown() + "\n" + conditions(reports)}
    for name in ("clicks", "scheduling"):
        if name in reports:
            found[name] = figures_table(reports[name].figures).markdown()
    if "capacity" in reports:
        found["capacity"] = capacities(reports["capacity"]).markdown()
    files = {name.value: name.file for name in Name} | _PROGRAMS
    for name, file in files.items():
        if (folder / file).exists():
            found[name] = _TITLE.sub("", (folder / file).read_text())
    return found


def _reports(folder: Path) -> Reports:
    return {
        name: Report.read(folder, name, [goal for goal in GOALS if goal.measurement == name])
        for name in MEASUREMENTS
        if (folder / f"{name}.json").exists()
    }


def goals(reports: Reports) -> Table:
    """A row for all goals that are about the same and have the same wording."""
    groups: defaultdict[tuple[str, str, str], list[Goal]] = defaultdict(list)
    for goal in GOALS:
        groups[goal.measurement, goal.about, goal.wording].append(goal)
    rows = [
        [
            f"`{measurement}`: {about}",
            wording,
            f"{together[0].at_least:.2g}",
            _listed([_found(goal, reports) for goal in together]),
        ]
        for (measurement, about, wording), together in groups.items()
    ]
    return Table(["what", "goal", "as a ratio", "measured"], rows)


def capacities(report: Report) -> Table:
    """A row for each load: what a step costs a server, and how many of them fill a core."""
    found = {figure.cell: figure.median for figure in report.figures}
    rows = []
    for load in dict.fromkeys(figure.cell.contestant for figure in report.figures):
        alone = found[Cell(f"{COST}, 1 worker", load)]
        cost = found[Cell(f"{COST}, {WORKERS} workers", load)]
        full = found[Cell(f"{FULL}, {WORKERS} workers", load)]
        rows.append([load, *(f"{each * 1e6:,.0f}" for each in (alone, cost))])
        rows[-1] += [f"{1 / each:,.0f}" for each in (cost, full)]
    workers = f"{WORKERS} workers"
    costs = f"us of a processor, {workers}"
    filled = f"steps/s that fill a core, {workers}"
    return Table(
        ["a step", "us of a processor, 1 worker", costs, filled, "steps/s of a full one"], rows
    )


def _listed(found: Sequence[str | None]) -> str:
    if not any(found):
        return _ABSENT
    return ", ".join(each or _ABSENT for each in found)


def _found(goal: Goal, reports: Reports) -> str | None:
    report = reports.get(goal.measurement)
    ratio = report.ratios.get(goal) if report else None
    if report is None or ratio is None:
        return None
    shown = f"{ratio:.2f}"
    if isinstance(goal.theirs, float):
        figures = {figure.cell: figure for figure in report.figures}
        shown = median_with_unit(figures[goal.ours])
    return f"**{shown}**" if ratio >= goal.at_least else shown


def conditions(reports: Reports) -> str:
    """What it was measured on, and how busy that was."""
    if not reports:
        return ""
    machine = next(iter(reports.values())).machine
    rounds = {len(each.answers) for found in reports.values() for each in found.figures}
    loads = _numbers(reports, "load before")
    others = _numbers(reports, "processors that others used")
    return (
        f"Medians of {min(rounds)} rounds on {machine['cores']} cores of "
        f"{machine['processor']}, Python {machine['python']}, PyTorch "
        f"{machine['torch']}. The load was {min(loads)} to {max(loads)} before each "
        f"measurement; during them others kept up to {max(others)} processors busy.\n"
    )


def _numbers(reports: Reports, key: str) -> Sequence[float]:
    return [float(str(report.machine[key])) for report in reports.values()]


def filled(page: str, contents: Mapping[str, str]) -> str:
    """The page with these contents in their places.

    Raises:
        ValueError: It has no such place.
    """
    for name, content in contents.items():
        before, mark, rest = page.partition(_MARK.format(name))
        _, end, after = rest.partition(_END)
        if not end:
            raise ValueError(f"the page has no place for {name}, or no end of it")
        page = f"{before}{mark}\n{content}\n{end}{after}"
    return page


def main(
    results: Annotated[Path, typer.Option(help="Where `make bench` left them.")] = FOLDER,
    page: Annotated[Path, typer.Option(help="The page to be filled.")] = _PAGE,
) -> None:
    """Fills the page, and lists goals that were reached and are not kept."""
    page.write_text(filled(page.read_text(), tables(results)))
    if (results / _CURVE).exists():
        shutil.copy(results / _CURVE, page.parent / "pictures")
    for name, report in _reports(results).items():
        for goal, ratio in report.ratios.items():
            if ratio >= goal.at_least and not goal.kept:
                print(f'reached, for reached.py: "{name}": "{goal.name}" ({ratio:.2f})')


if __name__ == "__main__":
    typer.run(main)
