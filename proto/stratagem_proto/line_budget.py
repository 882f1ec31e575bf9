"""A bound on the lines that strangers cause in a log.

This module is pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations


class LineBudget:
    """A token bucket of lines.

    Args:
        burst: How many lines may come at once.
        per_second: How many may come each second in the long run.
    """

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst, self._per_second = burst, per_second
        self.refill()

    def refill(self) -> None:
        """Forget all lines so far."""
        self._left, self._seen, self._left_out = float(self._burst), 0.0, 0

    def take(self, now: float) -> int | None:
        """Take a line.

        Returns:
            How many lines before this one were left out since the last that was not; None if this
            one is left out, too.
        """
        refilled = self._left + (now - self._seen) * self._per_second
        self._left, self._seen = min(refilled, float(self._burst)), now
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
