"""What the guide shows, works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import with_names

GUIDE = Path(__file__).parent.parent / "docs" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
PROGRAMS = {
    f"{page.stem} {number}": block
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.M), 1
    )
}
LATER = pytest.mark.full("the first program of its page uses what the page is about")


@with_names
@pytest.mark.parametrize(
    "name", [name if name.endswith(" 1") else pytest.param(name, marks=LATER) for name in PROGRAMS]
)
def test_the_programs_of_the_guide_run(name: str) -> None:
    exec(compile(PROGRAMS[name], f"guide: {name}", "exec"), {"__name__": "__main__"})


def test_most_pages_have_a_program() -> None:
    assert len({name.split()[0] for name in PROGRAMS}) > len(PAGES) / 2


def test_the_first_page_names_every_other() -> None:
    named = re.findall(r"\]\((\S+\.md)\)", (GUIDE / "README.md").read_text())
    assert sorted(named) == [page.name for page in PAGES if page.stem != "README"]
