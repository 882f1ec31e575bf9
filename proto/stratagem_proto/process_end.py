"""The end of a program, while threads can still be started."""

from __future__ import annotations

import threading
from collections.abc import Callable


def call_first(what: Callable[[], None]) -> None:
    """Have a function called when the interpreter begins to end.

    That comes before executors end, which servers and the libraries of stores need; whatever
    `atexit` calls comes after. What is given last is called first.
    """
    # `concurrent.futures` has no other hook for its own.
    threading._register_atexit(what)  # type: ignore[attr-defined]
