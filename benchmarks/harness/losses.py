"""What measurements share that lose a process and wait until others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

QUANTILES = ("median, s", "p99, s", "longest, s")

_PATIENCE_SECONDS = 120.0


def quantiles(times: Sequence[float], digits: int = 2) -> list[str]:
    """Return the median, the 99th percentile and the longest of times, as `QUANTILES` says."""
    return [f"{value:.{digits}f}" for value in (*np.percentile(times, [50, 99]), max(times))]


def wait_until(condition: Callable[[], bool], every: float = 0.02) -> None:
    """Wait until a condition holds, which is asked each so many seconds.

    Raises:
        TimeoutError: It has not come to hold in two minutes.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"what was waited for did not come in {_PATIENCE_SECONDS:g} s")
        time.sleep(every)
