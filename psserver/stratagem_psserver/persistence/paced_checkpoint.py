"""A checkpoint that is read slowly, so that others have processors left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from stratagem_proto.checkpoint.entries import TensorEntry
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.errors import UnavailableError

# Of a large tensor, so much is read between two rests.
_AT_ONCE_BYTES = 1 << 20

# In a rest, the time between two looks at whether to go on.
_GLANCE_SECONDS = 0.1


class Rests:
    """When a thread that reads does nothing.

    Args:
        seconds_after: Returns for how long to rest after so many bytes, in seconds.
        hurries: Returns whether there is no time for that.
    """

    def __init__(
        self, seconds_after: Callable[[int], float], hurries: Callable[[], bool] = lambda: False
    ) -> None:
        self._seconds_after, self._hurries = seconds_after, hurries
        self._ended = threading.Event()

    def take(self, nbytes: int) -> None:
        """Rest after so many bytes.

        Raises:
            UnavailableError: Nobody needs what is read any more.
        """
        left = self._seconds_after(nbytes)
        while left > 0.0 and not (self._hurries() or self._ended.wait(min(left, _GLANCE_SECONDS))):
            left -= _GLANCE_SECONDS
        if self._ended.is_set():
            raise UnavailableError("what is read is not needed any more")

    def end(self) -> None:
        """Have the thread read no more."""
        self._ended.set()


@dataclass(frozen=True)
class PacedCheckpoint(Checkpoint):
    """A checkpoint whose reader rests.

    Attributes:
        rests: When it does.
    """

    rests: Rests = field(kw_only=True)

    @classmethod
    def of(cls, checkpoint: Checkpoint, rests: Rests) -> PacedCheckpoint:
        """Return the same checkpoint with rests; it may not be beside a base."""
        return cls(checkpoint.opened, checkpoint.index, rests=rests)

    def read(self, entry: TensorEntry, start: int, target: memoryview) -> None:
        """As `Checkpoint.read`; it also raises as `Rests.take`."""
        for begin in range(0, len(target), _AT_ONCE_BYTES):
            part = target[begin : begin + _AT_ONCE_BYTES]
            super().read(entry, start + begin, part)
            self.rests.take(len(part))
