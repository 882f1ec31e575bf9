"""`python -m benchmarks.programs`: programs of others, plainly and on parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.harness.table import Table
from benchmarks.programs.catalogue import PROGRAMS, Program
from benchmarks.programs.difference import Difference, differences
from benchmarks.programs.trial import Outcome, TrialError, run_on_servers, run_plainly

_COLUMNS = ("program", "package", "metric", "plain", "workers 0, 1", "lines", "s", "s on servers")
_INSTALL = "pip install -r benchmarks/programs/requirements.txt"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Which ones; all by default.")] = None,
) -> None:
    """Train programs of others by themselves, and on two servers and two workers.

    Prints a table: what each measures on held-out data by itself, what it measures in each of the
    two workers, how many lines are changed, and the seconds that both take. The lines are those
    that docs/guide/frameworks.md shows. Run it at the root of a clone.

    Exit code: 0 if all programs ran that are installed; else 1.
    """
    shown, rows, problems = differences(), [], []
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        if not program.version:
            problems.append(f"{program.package} is not installed: {_INSTALL}")
            continue
        try:
            rows.append(_row(program, shown[program.name]))
            typer.echo(" | ".join(rows[-1]), err=True)
        except TrialError as error:
            problems.append(f"{program.name}: {error}")
    typer.echo(Table(_COLUMNS, rows).markdown())
    for problem in problems:
        typer.echo(problem, err=True)
    raise typer.Exit(any("is not installed" not in problem for problem in problems))


def _row(program: Program, difference: Difference) -> Sequence[str]:
    with TemporaryDirectory() as folder:
        plain = run_plainly(_written(program.text, Path(folder) / "plain"), Path(folder))
        ours = run_on_servers(
            _written(difference.applied(program.text), Path(folder) / "servers"), Path(folder)
        )
    return [program.what, f"{program.package} {program.version}", *_cells(plain, ours, difference)]


def _written(text: str, folder: Path) -> Path:
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(text, encoding="utf-8")
    return script


def _cells(plain: Outcome, ours: Outcome, difference: Difference) -> Sequence[str]:
    return [
        plain.metric,
        f"{plain.values[0]:.4g}",
        ", ".join(f"{each:.4g}" for each in ours.values),
        str(difference.size),
        f"{plain.seconds:.0f}",
        f"{ours.seconds:.0f}",
    ]


if __name__ == "__main__":
    typer.run(main)
