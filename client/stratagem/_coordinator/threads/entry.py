"""What one thread of the program does at a time."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from stratagem._coordinator.threads.patience import Patience


class Entry(AbstractContextManager[None]):
    """Keeps other threads out while the body runs; serves once.

    A generator would set the traceback of what the body raises, which not every class
    of exceptions allows.

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
