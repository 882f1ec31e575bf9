"""What the guide shows, works."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem import config

GUIDE = (Path(__file__).parent.parent / "docs" / "guide.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", GUIDE, re.DOTALL | re.M))
PROGRAMS = {
    title: block
    for title, text in SECTIONS.items()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
}


@pytest.fixture(autouse=True)
def one_logical_cpu_again() -> Iterator[None]:
    yield
    config.set_logical_cpus(1)


@pytest.mark.parametrize("title", PROGRAMS)
def test_the_programs_of_the_guide_run(title: str) -> None:
    exec(compile(PROGRAMS[title], f"guide: {title}", "exec"), {})


def test_most_sections_have_a_program() -> None:
    assert len(PROGRAMS) >= 6
