"""Telling values that come from servers from what the user has written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

Found = TypeVar("Found")


class Arrivals(AbstractContextManager[None]):
    """Entered while values come into copies; by several threads, if need be.

    Until they are settled, such copies look as if the user had written them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._under_way = 0

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._under_way -= 1

    def apart(self, look: Callable[[], list[Found]]) -> list[Found]:
        """Return what a look at copies finds, if none of it can be an arrival.

        What is found beside an arrival is found again by the next look, if the user
        has written it.
        """
        begun = self._begun
        if self._under_way:
            return []
        found = look()
        return found if self._begun == begun else []
