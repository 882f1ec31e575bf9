"""How fast an image is sent, so that others have processors left."""

from __future__ import annotations

from stratagem_psserver.environment import Clock

# For so much time in which less was sent than may be, more is sent afterwards.
_MADE_UP_SECONDS = 0.5


class Pace:
    """Keeps to so many bytes in a second.

    Args:
        bytes_per_second: The most of them; 0 for as many as possible.
        clock: Returns the time in seconds.
    """

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._bytes_per_second, self._clock = bytes_per_second, clock
        self._due = clock()

    def wait_after(self, nbytes: int) -> float:
        """Return for how many seconds to send nothing, after so many bytes."""
        if not self._bytes_per_second:
            return 0.0
        now = self._clock()
        begin = max(self._due, now - _MADE_UP_SECONDS)
        self._due = begin + nbytes / self._bytes_per_second
        return max(self._due - now, 0.0)
