"""Something that happens once, and for which threads wait."""

from __future__ import annotations

import threading


class Latch:
    """As `threading.Event`, but never cleared, and set under a lock of its user.

    Each closure has one, and few are waited for: to make and set an event takes 2.3 us,
    this 0.2, where an empty function takes about 80 in all.
    """

    __slots__ = ("_closed", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def is_set(self) -> bool:
        """Returns whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Lets it have happened; again does nothing."""
        if not self._is_set:
            self._is_set = True
            self._closed.release()

    def wait(self) -> None:
        """Waits until it has happened."""
        with self._closed:
            pass  # which lets the next one in that waits
