"""Threads of one process that train and evaluate at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Own(threading.local):
    trains = False


class Trainers:
    """The threads that compute gradients, whose parameters nobody else may change.

    What a trainer computes with is refreshed by itself alone. Threads that only look
    have what it has, while it runs.
    """

    def __init__(self) -> None:
        self._own = _Own()
        self._lock = threading.Lock()
        self._inside = 0
        self._refreshing = threading.Lock()

    def add_this(self) -> None:
        """Take this thread for a trainer from now on."""
        self._own.trains = True

    @contextmanager
    def running(self, refresh: Callable[[], None]) -> Iterator[None]:
        """A run of this thread, which begins with fresh values.

        Args:
            refresh: Makes them so; left out while another thread trains.
        """
        if not self._own.trains:
            with self._refreshing:
                if not self._inside:
                    refresh()
            yield
            return
        with self._lock:
            others, self._inside = self._inside, self._inside + 1
        try:
            if not others:
                with self._refreshing:
                    refresh()
            yield
        finally:
            with self._lock:
                self._inside -= 1
