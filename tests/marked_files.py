"""Spares loading files none of whose tests can be asked for: `pytest -m "cluster and not long"`.

To load all files takes half a minute of a core in each process of pytest-xdist. A mark is looked
for in the source, so each test has to have its marks in its own file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

# What targets of the Makefile ask for.
_MARKS = ("chaos", "cluster", "compose", "install", "netns", "ray", "spec")

_TERM = re.compile(r"(not )?\w+")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file if none of its tests has a mark asked for, or all have one not asked for."""
    terms = config.getoption("markexpr").split(" and ")
    if collection_path.suffix != ".py" or not all(map(_TERM.fullmatch, terms)):
        return None
    wanted = [term for term in terms if term in _MARKS]
    unwanted = [term.removeprefix("not ") for term in terms if term.startswith("not ")]
    missing = any(not _has(collection_path, mark) for mark in wanted)
    return missing or any(_is_all(collection_path, mark) for mark in unwanted) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Refuse a mark that is not in the file of its test, which would be left out.

    Raises:
        UsageError: There is one.
    """
    for item in items:
        for mark in _MARKS:
            if item.get_closest_marker(mark) and not _has(item.path, mark):
                raise pytest.UsageError(
                    f"{item.nodeid} has the mark {mark}, and its file does not; "
                    f"write pytest.mark.{mark} in {item.path.name}"
                )


def _has(path: Path, mark: str) -> bool:
    return f"pytest.mark.{mark}" in _text(path)


def _is_all(path: Path, mark: str) -> bool:
    line = rf"^pytestmark = .*\bpytest\.mark\.{mark}\b"
    return re.search(line, _text(path), re.MULTILINE) is not None


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
