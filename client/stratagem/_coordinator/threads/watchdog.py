"""Showing a coordinator that hangs."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

_LOG = logging.getLogger("stratagem")


class Watchdog:
    """Logs where everything stands while nothing ends. Spec: FLT-13.

    Args:
        seconds: The time between looks.
        progress: Returns another number whenever something has ended; None if there is nothing to
            do.
        state: Returns where everything stands.
    """

    def __init__(
        self, seconds: float, progress: Callable[[], int | None], state: Callable[[], str]
    ) -> None:
        self._seconds = seconds
        self._progress = progress
        self._state = state
        self._before = progress()

    def look(self) -> None:
        """Look once; to be called after so many seconds each."""
        now = self._progress()
        if now is not None and now == self._before:
            self._report()
        self._before = now

    def _report(self) -> None:
        _LOG.warning(
            "no scheduled function has ended for %g s: %s\n%s",
            self._seconds,
            self._state(),
            "".join(_stacks()),
        )


def _stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"\nThread {names.get(ident, ident)}:\n"
        yield from traceback.format_stack(frame)
