"""Stopping work that goes on step by step in a thread, such as a long update program."""

from __future__ import annotations

from contextvars import ContextVar

from stratagem_proto.errors import StratagemError


class Stop:
    """Whether some work is to stop; used in any thread.

    Args:
        wider: One that stops this work, too.
    """

    def __init__(self, wider: Stop | None = None) -> None:
        self._wider = wider
        self._error: StratagemError | None = None

    def request(self, error: StratagemError) -> None:
        """Have the work stop where it next looks, and fail with an error that will pass."""
        self._error = error

    def check(self) -> None:
        """Raise the error if the work is to stop."""
        if self._error is not None:
            raise self._error
        if self._wider is not None:
            self._wider.check()


_NEVER = Stop()

PRESENT: ContextVar[Stop] = ContextVar("stratagem_stop", default=_NEVER)
"""Stops the request that is being applied."""
