"""The lock of a coordinator, the threads that wait under it, and for how long."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from stratagem._core.waiting import Wait
from stratagem_proto.errors import CancelledError, DeadlineExceededError, InvalidArgumentError


class Patience:
    """The seconds that one call has, which errors name; None for as long as it takes."""

    def __init__(self, call: str, seconds: float | None = None) -> None:
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
    """

    def __init__(self, lock: threading.Lock, patience: Patience) -> None:
        self._lock, self._patience = lock, patience

    def __enter__(self) -> None:
        left = self._patience.left
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise self._patience.exceeded("another thread joins or schedules")

    def __exit__(self, *error: object) -> None:
        self._lock.release()


# Shorter waits are usual, and nobody is told of them.
QUIET_SECONDS = 0.5


class Monitor:
    """A lock, to be entered, under which threads wait until something holds.

    Args:
        hurry: Called before a thread waits.
        told: Makes, of what a thread waits for and how long it may, the wait that people see.
    """

    def __init__(self, hurry: Callable[[], None], told: Callable[[str, Patience], Wait]) -> None:
        self._hurry, self._told = hurry, told
        self._changed = threading.Condition()
        self._awaited: list[Callable[[], bool]] = []
        self._closed = False

    def __enter__(self) -> None:
        self._changed.acquire()

    def __exit__(self, *error: object) -> None:
        self._changed.release()

    # All that follows is done under the lock.

    def wait(self, condition: Callable[[], bool], subject: str, patience: Patience) -> bool:
        """Let the lock go until a condition holds or patience ends; return whether it holds.

        Args:
            condition: The condition.
            subject: What it is, for people.
            patience: How long at most.

        Raises:
            CancelledError: The coordinator is closed.
        """
        holds = True
        if not self._closed and not condition():
            self._hurry()
            holds = self._wait(lambda: self._closed or condition(), subject, patience)
        self.require_open()
        return holds

    def _wait(self, holds: Callable[[], bool], subject: str, patience: Patience) -> bool:
        self._awaited.append(holds)
        try:
            left = patience.left
            quiet = QUIET_SECONDS if left is None else min(left, QUIET_SECONDS)
            if self._changed.wait_for(holds, quiet):
                return True
            wait = self._told(subject, patience)
            wait.begin(ago=quiet)
            with wait:
                return self._changed.wait_for(holds, patience.left)
        finally:
            self._awaited.remove(holds)

    def wake(self) -> None:
        """Let threads go on whose condition holds."""
        # To wake a thread for nothing takes longer than all else that a closure needs.
        if any([holds() for holds in self._awaited]):
            self._changed.notify_all()

    def close(self) -> None:
        """Let all threads go on, by an error."""
        self._closed = True
        self.wake()

    def require_open(self) -> None:
        """Raise `CancelledError` if the coordinator is closed."""
        if self._closed:
            raise CancelledError(
                "the coordinator is closed, because its strategy is, or the program "
                "ends; schedule functions before"
            )
