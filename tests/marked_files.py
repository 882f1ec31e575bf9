"""Spares loading files without the mark that is asked for: `pytest -m cluster`.

To load all files takes half a minute of a core in each process of pytest-xdist. A mark is looked
for in the source, so each test has to have its marks in its own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

# What targets of the Makefile ask for.
_MARKS = ("chaos", "cluster", "compose", "install", "netns", "ray", "spec")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file if only tests with one mark are asked for, and none in it has the mark."""
    # As in "cluster and not long".
    wanted = config.getoption("markexpr").partition(" and ")[0]
    if wanted in _MARKS and collection_path.suffix == ".py" and not _has(collection_path, wanted):
        return True
    return None


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


@cache
def _has(path: Path, mark: str) -> bool:
    return f"pytest.mark.{mark}" in path.read_text(encoding="utf-8")
