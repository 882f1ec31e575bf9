"""The pages that people write, and what stands in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("*.md")),
]

with_names = pytest.mark.filterwarnings("error:only the order in which this program makes")
"""For tests of programs that readers take over: what they make is told apart by names."""


def title(page: Path) -> str:
    """Return the page's path in the tree, for the name of a test."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def code_spans(page: Path) -> list[str]:
    """Return what stands between backticks in the page's prose, each on one line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def programs(page: Path) -> list[str]:
    """Return the blocks of Python that begin at the left edge of a page."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
