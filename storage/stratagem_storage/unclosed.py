"""What a program has not closed when it begins to end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Generic, TypeVar
from weakref import WeakSet

Thing = TypeVar("Thing")


class Unclosed(Generic[Thing]):
    """Closes what is still open when the interpreter begins to end.

    That comes before executors end, which servers and the libraries of stores need; whatever
    `atexit` calls comes after.

    Args:
        close: Closes one of them, or waits for its end.
    """

    def __init__(self, close: Callable[[Thing], None]) -> None:
        self._close, self._open = close, WeakSet[Thing]()
        self._is_registered = False
        # A child that was forked has them as well, and ends before those who use them.
        os.register_at_fork(after_in_child=self._open.clear)

    def add(self, thing: Thing) -> None:
        """Have it closed at the end, if it is still there."""
        self._open.add(thing)
        if not self._is_registered:
            self._is_registered = True
            # `concurrent.futures` has no other hook for its own.
            threading._register_atexit(self.close)  # type: ignore[attr-defined]

    def discard(self, thing: Thing) -> None:
        """Leave it alone, for it is closed."""
        self._open.discard(thing)

    def close(self) -> None:
        """Close all; an error of one keeps no other one open."""
        with ExitStack() as closing:
            for thing in list(self._open):
                closing.callback(self._close, thing)


_last_threads = Unclosed(threading.Thread.join)


def start_last_thread(thread: threading.Thread) -> None:
    """Start a thread that writes to a store, and that the interpreter ends only after.

    It would wait for any thread. But it ends executors first, by which the libraries of stores look
    up the names of hosts.
    """
    _last_threads.add(thread)
    thread.start()


def join_last_threads() -> None:
    """Wait until all these threads have ended."""
    _last_threads.close()
