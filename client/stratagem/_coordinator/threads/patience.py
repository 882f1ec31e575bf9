"""How long a call of the program waits, for other threads of it too."""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager

from stratagem_proto.errors import DeadlineExceededError, InvalidArgumentError


class Patience:
    """The time that one call has.

    Args:
        call: What errors call it.
        seconds: How long it may wait; None for ever.

    Raises:
        InvalidArgumentError: `seconds` is negative, or no number.
    """

    def __init__(self, call: str, seconds: float | None) -> None:
        if seconds is not None and not seconds >= 0:
            raise InvalidArgumentError(
                f"timeout of {call} is {seconds}; give seconds, 0 to wait for nothing, "
                "or None to wait for as long as it takes"
            )
        self._call = call
        self._seconds = math.inf if seconds is None else seconds
        self._end = time.monotonic() + self._seconds

    @property
    def left(self) -> float | None:
        """Seconds that are left; None for any number."""
        left = self._end - time.monotonic()
        return None if left == math.inf else max(left, 0.0)

    def exceeded(self, missing: str) -> DeadlineExceededError:
        """Return the error of a call that has waited for too long."""
        return DeadlineExceededError(f"{self._call} waited for {self._seconds:g} s: {missing}")


class ExclusiveEntry(AbstractContextManager[None]):
    """Keeps other threads out while the body runs; serves once.

    A generator would set the traceback of what the body raises, which not every class of exceptions
    allows.

    Args:
        lock: Held meanwhile.
        patience: For how long others may be awaited; its error is raised then.
    """

    def __init__(self, lock: threading.Lock, patience: Patience) -> None:
        self._lock, self._patience = lock, patience

    def __enter__(self) -> None:
        left = self._patience.left
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise self._patience.exceeded("another thread joins or schedules")

    def __exit__(self, *error: object) -> None:
        self._lock.release()
