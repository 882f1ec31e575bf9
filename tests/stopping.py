"""Processes that do nothing for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually

_STOPPED = "T"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Lets a process do nothing in the block, as if its machine were overloaded."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # A signal is taken some time after it was sent.
        eventually(lambda: _state(pid) == _STOPPED)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    # After the name of the program, which may hold spaces and brackets.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
