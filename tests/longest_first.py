"""Runs the files that take a minute or more before all others.

A file stays in one process of pytest-xdist. One that comes last has all others wait for it.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that are marked `first`."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
