"""The lock of a coordinator, and the threads that wait under it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratagem_proto.errors import CancelledError


class Monitor:
    """A lock, to be entered, under which threads wait until something holds."""

    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        self._changed = threading.Condition()
        self._awaited: list[Callable[[], bool]] = []
        self._closed = False

    def __enter__(self) -> None:
        self._changed.acquire()

    def __exit__(self, *error: object) -> None:
        self._changed.release()

    # All that follows is done under the lock.

    def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let the lock go until a condition holds; return whether it does.

        Args:
            condition: The condition.
            seconds: How long to wait at most; None for ever.

        Raises:
            CancelledError: The coordinator is closed.
        """
        holds = True
        if not self._closed and not condition():
            self._hurry()
            holds = self._wait(lambda: self._closed or condition(), seconds)
        self.require_open()
        return holds

    def _wait(self, holds: Callable[[], bool], seconds: float | None) -> bool:
        self._awaited.append(holds)
        try:
            return self._changed.wait_for(holds, seconds)
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
        """Check that the coordinator is not closed.

        Raises:
            CancelledError: It is.
        """
        if self._closed:
            raise CancelledError(
                "the coordinator is closed, because its strategy is, or the program "
                "ends; schedule functions before"
            )
