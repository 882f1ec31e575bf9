"""The thread that shows a coordinator that hangs."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

_LOG = logging.getLogger("stratagem")


class Watchdog:
    """Logs where everything stands while nothing ends. Spec: FLT-13.

    Args:
        seconds: How long that may last, and the time between reports.
        progress: Returns another number whenever something has ended; None if there
            is nothing to do.
        state: Returns where everything stands.
    """

    def __init__(
        self,
        seconds: float,
        progress: Callable[[], int | None],
        state: Callable[[], str],
    ) -> None:
        self._seconds = seconds
        self._progress = progress
        self._state = state
        self._closed: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(
            target=self._run, name="stratagem-watchdog", daemon=True
        ).start()

    def close(self) -> None:
        """Lets the thread end. May be called anywhere."""
        self._closed.put(None)

    def _run(self) -> None:
        before = self._progress()
        while not self._is_closed():
            now = self._progress()
            if now is not None and now == before:
                self._report()
            before = now

    def _is_closed(self) -> bool:
        try:
            self._closed.get(timeout=self._seconds)
        except Empty:
            return False
        return True

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
