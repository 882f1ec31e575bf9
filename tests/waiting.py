"""Waiting for what others do."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 60.0, poll: float = 0.01) -> None:
    """Waits for a condition and fails when it does not come true in time.

    Args:
        condition: Looked at again and again.
        seconds: How long to wait.
        poll: Seconds between looks.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(poll)
