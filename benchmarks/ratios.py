"""Alternated runs, their medians, and tables of ratios."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Durations of one contestant's runs, in seconds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle duration in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Range from the first to the third quartile, relative to the median."""
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / self.median


def alternate(
    contestants: Mapping[str, Callable[[], None]], rounds: int
) -> dict[str, Timing]:
    """Times each contestant once a round, after one round of warming up.

    Runs alternate so that a change of the machine's load meets all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for warm in [False] + [True] * rounds:
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if warm:
                seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def machine() -> dict[str, object]:
    """What the figures were measured on, and how busy it was."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }
