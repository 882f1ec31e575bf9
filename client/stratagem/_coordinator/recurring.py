"""Threads that call a function every so many seconds, such as the watchdog."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from stratagem_proto.errors import CancelledError


class Recurring:
    """Calls a function again and again, until that raises `CancelledError`.

    Args:
        name: Of the thread, for people.
        seconds: Time before each call.
        action: The function.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        self._name = name
        self._seconds = seconds
        self._action = action
        # Of this kind because the garbage collector may call `close` anywhere.
        self._closed: SimpleQueue[None] = SimpleQueue()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Let the thread end. May be called anywhere."""
        self._closed.put(None)

    def _run(self) -> None:
        with suppress(CancelledError):
            while not self._is_closed():
                self._action()

    def _is_closed(self) -> bool:
        try:
            self._closed.get(timeout=self._seconds)
        except Empty:
            return False
        return True


# A closure that has begun by then need not be asked for. Short closures all have.
_PATIENCE_SECONDS = 0.02


class Rebalancing:
    """Calls a function, some time after it was asked to.

    Args:
        rebalance: The function.
        at_end: Called once, after `close`.
    """

    def __init__(self, rebalance: Callable[[], None], at_end: Callable[[], None]) -> None:
        self._rebalance = rebalance
        self._at_end = at_end
        self._wishes: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="stratagem-rebalancing", daemon=True).start()

    def ask(self) -> None:
        """Ask for the function to be called."""
        self._wishes.put(True)

    def close(self) -> None:
        """Let the thread end. May be called anywhere."""
        self._wishes.put(False)

    def _run(self) -> None:
        while self._wishes.get():
            time.sleep(_PATIENCE_SECONDS)
            self._rebalance()
        self._at_end()


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
