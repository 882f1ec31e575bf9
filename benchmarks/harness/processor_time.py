"""How long processors worked for a process, and for those that it started."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Return the seconds of all processors together, so far.

    Args:
        pid: The process. What has ended of those that it started does not count.
    """
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for process, parent, used in _processes():
        ticks[process] = used
        children[parent].append(process)
    family = [pid]
    for process in family:
        family += children[process]
    return sum(ticks.get(process, 0) for process in family) / _TICKS_PER_SECOND


def _processes() -> Iterator[tuple[int, int, int]]:
    """Number, parent and ticks of each process."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        yield int(folder.name), int(fields[1]), int(fields[11]) + int(fields[12])
