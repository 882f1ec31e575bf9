"""`python -m benchmarks.profiles`: where the time goes of what is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.machine import load
from benchmarks.harness.report import FOLDER, join
from benchmarks.profiles import lookups, steps
from benchmarks.profiles.names import Name

_PAGES: Mapping[Name, Callable[[int], str]] = {Name.STEP: steps.page, Name.LOOKUP: lookups.page}


def main(
    names: Annotated[
        list[Name] | None, typer.Argument(help="What to profile; everything if none.")
    ] = None,
    number: Annotated[int, typer.Option(min=1, help="How many steps, or lookups of a kind.")] = 300,
    out: Annotated[Path, typer.Option(help="Folder for the tables.")] = FOLDER,
) -> None:
    """Prints and keeps where the time goes."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names or Name:
        busy, tables = load(), _PAGES[name](number)
        page = f"## A {name.value}\n\n{tables}\nThe load was {busy} before.\n"
        print(page)
        (out / name.file).write_text(page)
    join(out)


if __name__ == "__main__":
    typer.run(main)
