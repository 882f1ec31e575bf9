"""Threads that write to stores when a program ends, while that is possible."""

from __future__ import annotations

import threading

from stratagem_proto.unclosed import Unclosed

_threads = Unclosed(threading.Thread.join)


def start(thread: threading.Thread) -> None:
    """Start a thread that the interpreter ends only after.

    It would wait for any thread. But it ends executors first, by which the libraries of stores look
    up the names of hosts.
    """
    _threads.add(thread)
    thread.start()


def join() -> None:
    """Wait until all these threads have ended."""
    _threads.close()
