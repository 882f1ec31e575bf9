"""Whose turn it is to write to a place that several would write to."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

BEAT_SECONDS = 5.0
"""How often whoever writes shows that it is there."""

SILENT_SECONDS = 30.0
"""For how long it may be silent before another one goes on in its place."""


class Turn:
    """The turn of one of several writers: that of the last one to begin, as long as it is there.

    Who writes shows it from a thread of its own, since writing much may take minutes.

    Args:
        show: Writes something to the place that all of them read.
        shown: Returns what was written there last; None for nothing.

    Attributes:
        silent_seconds: For how long the one that writes may be silent.
    """

    def __init__(self, show: Callable[[str], object], shown: Callable[[], object]) -> None:
        self._show, self._shown = show, shown
        self.silent_seconds = SILENT_SECONDS
        self._over = threading.Event()
        self._seen: object = None
        self._since: float | None = None

    def take(self) -> None:
        """Write from now on."""
        self._show(secrets.token_hex(8))
        self._over.set()
        self._since, self._over = None, threading.Event()
        weakref.finalize(self, self._over.set)
        arguments = self._show, self._over
        threading.Thread(target=_show_on, args=arguments, name="turn", daemon=True).start()

    def lose(self) -> None:
        """Leave it to another one."""
        self._over.set()

    def has_come(self) -> bool:
        """Whether the other one has been silent for so long that it is gone."""
        seen, now = self._shown(), time.monotonic()
        if self._since is None or seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since >= self.silent_seconds


def _show_on(show: Callable[[str], object], over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        # A place that is lost is told, and found again, where it is written to.
        with suppress(Exception):
            show(secrets.token_hex(8))
