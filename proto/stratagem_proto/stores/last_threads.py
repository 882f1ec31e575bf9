"""Threads that write to stores when a program ends, while that is possible."""

from __future__ import annotations

import threading
from functools import cache
from weakref import WeakSet

_threads: WeakSet[threading.Thread] = WeakSet()


def start(thread: threading.Thread) -> None:
    """Start a thread that the interpreter ends only after.

    It would wait for any thread. But it ends executors first, by which the libraries of stores look
    up the names of hosts, and only this hook is called before.
    """
    _join_at_the_end()
    _threads.add(thread)
    thread.start()


@cache
def _join_at_the_end() -> None:
    # `concurrent.futures` has no other hook for its own.
    threading._register_atexit(_join)  # type: ignore[attr-defined]


def _join() -> None:
    for thread in list(_threads):
        thread.join()
