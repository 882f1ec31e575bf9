"""Calls of old spellings, each as if it were the first one of its process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stratagem._core import options


@contextmanager
def warns_to_use(replacement: str) -> Iterator[None]:
    """Scope in which an old spelling is called, whose warning names a new one."""
    options.warned.clear()
    with pytest.warns(DeprecationWarning, match=f"use {replacement}"):
        yield
