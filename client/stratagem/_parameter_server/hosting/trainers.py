"""Threads of one process that train and evaluate at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class _Own(threading.local):
    trains = False


class Trainers:
    """The threads that compute gradients, whose parameters nobody else may change.

    What a trainer computes with is refreshed by itself alone. Threads that only look have what it
    has, while it runs.
    """

    def __init__(self) -> None:
        self._own = _Own()
        self._lock = threading.Lock()
        self._inside = 0
        self._refreshing = threading.Lock()

    def add_this(self) -> None:
        """Take this thread for a trainer from now on."""
        self._own.trains = True

    def run(self, refresh: Callable[[], None], call: Callable[[], Result]) -> Result:
        """Return what a run of this thread returns, which begins with fresh values.

        Args:
            refresh: Makes them so; left out while another thread trains.
            call: The run.
        """
        if not self._own.trains:
            with self._refreshing:
                if not self._inside:
                    refresh()
            return call()
        with self._lock:
            others, self._inside = self._inside, self._inside + 1
        try:
            if not others:
                with self._refreshing:
                    refresh()
            return call()
        finally:
            with self._lock:
                self._inside -= 1
