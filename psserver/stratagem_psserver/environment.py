"""What a server takes from the machine that it runs on: time, randomness and threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from stratagem_psserver.process import Compute

Clock: TypeAlias = Callable[[], float]
"""Returns the time in seconds since a moment in the past; it never goes back."""


@dataclass(frozen=True)
class Environment:
    """What a server takes from its machine; a simulation hands in its own.

    Attributes:
        clock: Returns the time, in seconds; the event loop's timers run by the same clock.
        random_bytes: Returns as many random bytes as it is asked for.
        compute: Runs the work that goes through tensors.
    """

    clock: Clock = time.monotonic
    random_bytes: Callable[[int], bytes] = os.urandom
    compute: Compute = field(default_factory=Compute)
