"""How a fault is planted into the real code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from typing import TypeAlias
from unittest.mock import patch

Plant: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Returns a context in which the code has the fault."""

# A fault that strikes each time would be found by any test.
_EVERY = 5
_times = count(1)


def strikes() -> bool:
    """Return whether a fault strikes this time, which it does now and then."""
    return next(_times) % _EVERY == 0


def replaced(owner: object, name: str, value: object) -> Plant:
    """Return a fault that puts something in the place of a function or method."""
    return lambda: patch.object(owner, name, value)
