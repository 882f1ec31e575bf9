"""Threads that write to stores when a program ends, while that is possible."""

from __future__ import annotations

import threading
from functools import cache
from weakref import WeakSet

from stratagem_proto.process_end import call_first

_threads: WeakSet[threading.Thread] = WeakSet()


def start(thread: threading.Thread) -> None:
    """Start a thread that the interpreter ends only after.

    It would wait for any thread. But it ends executors first, by which the libraries of stores look
    up the names of hosts.
    """
    _join_at_the_end()
    _threads.add(thread)
    thread.start()


@cache
def _join_at_the_end() -> None:
    call_first(join)


def join() -> None:
    """Wait until all these threads have ended."""
    for thread in list(_threads):
        thread.join()
