"""What the pages of how-tos show, works; those with two programs are `test_side_by_side.py`'s."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT, programs, with_names

FOLDER = ROOT / "docs" / "how-to"
PAGES = sorted(FOLDER.glob("*.md"))
PROGRAMS = {
    f"{page.stem} {number}": program
    for page in PAGES
    if "<table>" not in page.read_text(encoding="utf-8")
    for number, program in enumerate(programs(page), 1)
}


@with_names
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_a_page_run(name: str) -> None:
    exec(compile(PROGRAMS[name], f"how to: {name}", "exec"), {"__name__": "__main__"})


def test_pages_have_programs() -> None:
    pages = {
        "dense-layers",
        "early-stopping",
        "networks",
        "notebooks",
        "recovering",
        "shuffles",
        "sizing",
        "stalls",
        "tuning",
        "uneven-tables",
    }
    assert {name.split()[0] for name in PROGRAMS} == pages


def test_the_first_page_names_every_other() -> None:
    first = (FOLDER / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\(([\w-]+\.md)\)", first)
    assert sorted(named) == [page.name for page in PAGES if page.stem != "README"]
