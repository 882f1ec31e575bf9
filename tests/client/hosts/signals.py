"""Reports of hosts that are threads of this process to a test."""

from __future__ import annotations

import threading

BEGUN = threading.Event()


def begin() -> None:
    """Let the test know that a step runs."""
    BEGUN.set()
