"""What processes use, now and then."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil


class Kind(NamedTuple):
    """A thing of which processes use more or less.

    Attributes:
        name: With its unit.
        slack: How much more than after the warm-up still counts as flat, as a part of that.
        spare: And how much more in any case.
        summed_up: Makes one number of those of a part of the run.
    """

    name: str
    slack: float
    spare: float
    summed_up: Callable[[Sequence[float]], float] = statistics.median


MEMORY = Kind("MB of memory", 0.05, 20)
DESCRIPTORS, THREADS = Kind("descriptors", 0, 3), Kind("threads", 0, 3)
# It grows until the next image.
DISK = Kind("MB on disk", 0.1, 5, max)
KINDS = (MEMORY, DESCRIPTORS, THREADS, DISK)


@dataclass
class Samples:
    """Samples of one run.

    Attributes:
        seconds: When each was taken.
        values: By kind, and by who uses it.
    """

    seconds: list[float] = field(default_factory=list)
    values: dict[Kind, dict[str, list[float]]] = field(
        default_factory=lambda: {kind: defaultdict(list) for kind in KINDS}
    )

    def take(self, pids: Mapping[str, int], folders: Mapping[str, Path]) -> None:
        """Note what processes and folders use now."""
        self.seconds.append(time.monotonic())
        for name, pid in pids.items():
            process = psutil.Process(pid)
            self.values[MEMORY][name].append(process.memory_info().rss / 1e6)
            self.values[DESCRIPTORS][name].append(process.num_fds())
            self.values[THREADS][name].append(process.num_threads())
        for name, folder in folders.items():
            self.values[DISK][name].append(_size(folder) / 1e6)


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(Path(root, name)).st_size
            except FileNotFoundError:
                continue  # it was removed meanwhile
    return total


class Growth(NamedTuple):
    """How much more somebody uses at the end than after the warm-up.

    Attributes:
        early: In the two fifths of the run after the warm-up.
        late: In the last two fifths.
        is_flat: Whether that counts as the same.
    """

    early: float
    late: float
    is_flat: bool


def growth(kind: Kind, values: Sequence[float]) -> Growth:
    """Compare the end with the time after the warm-up, which is the first fifth."""
    fifth = max(1, len(values) // 5)
    early = kind.summed_up(values[fifth : 3 * fifth] or values)
    late = kind.summed_up(values[-2 * fifth :])
    return Growth(early, late, late <= early * (1 + kind.slack) + kind.spare)
