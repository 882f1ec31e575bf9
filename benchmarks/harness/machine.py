"""What figures were measured on, and who else used it."""

from __future__ import annotations

import os
import platform
import re
import time
from contextlib import suppress
from pathlib import Path

import torch

from benchmarks.peers.processor_time import family

_MODEL = re.compile(r"^model name\s*: (.*)$", re.MULTILINE)
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, object]:
    """What is measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def load() -> float:
    """How many processes ran or wanted to, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


class Others:
    """How many processors are kept busy by processes that are not of this family."""

    def __init__(self) -> None:
        """Begins to watch."""
        self._begun = _clocks()

    def busy(self) -> float:
        """On average since it was made."""
        now, everyone, ours = _clocks()
        begun, everyone_then, ours_then = self._begun
        theirs = (everyone - everyone_then) - (ours - ours_then)
        return round(max(theirs, 0.0) / (now - begun), 2)


def _clocks() -> tuple[float, float, float]:
    """The time, and seconds of processors: of all processes, and of ours."""
    return time.perf_counter(), seconds_of_all(), sum(map(_of, family(os.getpid())))


def seconds_of_all() -> float:
    """Return the seconds that processors have worked since the machine started, for whomever."""
    user, nice, system, _, _, *interrupts = _ticks(Path("/proc/stat"), slice(1, 9))
    return (user + nice + system + sum(interrupts)) / _TICKS_PER_SECOND


def _of(pid: int) -> float:
    """With those it has started that have ended."""
    with suppress(OSError):
        return sum(_ticks(Path(f"/proc/{pid}/stat"), slice(11, 15))) / _TICKS_PER_SECOND
    return 0.0


def _ticks(file: Path, fields: slice) -> list[int]:
    # The name of a process, in parentheses, may have blanks.
    line = file.read_text().partition("\n")[0].rpartition(")")[2]
    return [int(field) for field in line.split()[fields]]


def _processor() -> str:
    found = _MODEL.search(Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()
