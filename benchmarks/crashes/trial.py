"""A server that is killed and started again; without anything that peers do not have."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

UPDATES = 100
"""So many are acknowledged before the server is killed."""

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Finding:
    """What a client finds after its server was killed and started again.

    Attributes:
        there: How many of its updates; None if it cannot read.
        words: How its next calls ended.
    """

    there: float | None
    words: str

    def tell(self) -> None:
        """Print it for the process that has started this one."""
        print(json.dumps(asdict(self)), flush=True)


class ServerProcess:
    """A server that is `python -m MODULE ARGUMENTS`, in a process of its own."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(self._command)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.end()
        self._process = subprocess.Popen(self._command)

    def end(self) -> None:
        """Kill it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def found(add: Callable[[], object], read: Callable[[], float]) -> Finding:
    """Read and go on, in a thread that is given up when it does not come back."""
    ended: list[Finding] = []
    thread = threading.Thread(target=lambda: ended.append(_tried(add, read)), daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    waits = Finding(None, f"waits for longer than {_PATIENCE_SECONDS:g} s")
    return ended[0] if ended else waits


def _tried(add: Callable[[], object], read: Callable[[], float]) -> Finding:
    there = None
    try:
        there = read()
        add()
        goes_on = read() == there + 1
    except Exception as error:
        return Finding(there, f"{type(error).__name__}: {_first_line(error)}")
    return Finding(there, "goes on" if goes_on else "goes on, but its next update is not there")


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:120] if lines else ""
