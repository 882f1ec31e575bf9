"""What a client and its server take, without a profiler."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.processor_time import processor_seconds


@dataclass(frozen=True)
class Taken:
    """Seconds that something took.

    Attributes:
        clock: By the clock.
        client: Of processors, in this process.
        server: Of processors, in its children.
    """

    clock: float
    client: float
    server: float


def taken(call: Callable[[], object]) -> Taken:
    """What a call takes, behind one that does not count."""
    call()
    before = _clocks()
    call()
    return Taken(*np.subtract(_clocks(), before).tolist())


def _clocks() -> tuple[float, float, float]:
    everything, client = processor_seconds(os.getpid()), time.process_time()
    return time.perf_counter(), client, everything - client
