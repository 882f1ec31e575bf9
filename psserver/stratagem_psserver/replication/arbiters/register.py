"""What keeps the view of a task, and takes its time to answer."""

from __future__ import annotations

import time
from typing import Protocol

from stratagem_proto.v1.replication_pb2 import View


class Deadline:
    """The time at which a call has to have ended.

    Args:
        seconds: How long it is until then.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; a moment if it has come, since 0 stands for no limit in places."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


class Register(Protocol):
    """A compare-and-set register whose methods block, and are called in several threads.

    Each method tries to end by the deadline. It never repeats a request that may have had an
    effect: the repetition would be told that the view is another one, namely that which it has
    written itself.

    Attributes:
        name: What it is called in messages.
    """

    name: str

    def read(self, deadline: Deadline) -> View | None:
        """Return the view, as `Arbiter.read`."""

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        """Replace the view, as `Arbiter.replace`."""

    def close(self) -> None:
        """Release what it holds."""
