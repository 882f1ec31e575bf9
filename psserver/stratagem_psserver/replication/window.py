"""How much a primary sends to a backup that has not acknowledged it."""

from __future__ import annotations

from collections import deque

# A backup that loads an image, or is slow, has at most so many bytes of records more than it wants.
_MOST_BYTES = 64 << 20


class Window:
    """Counts the bytes of records that were sent and are not acknowledged."""

    def __init__(self) -> None:
        # The last position of each batch, and its bytes.
        self._sent: deque[tuple[int, int]] = deque()
        self._nbytes = 0

    @property
    def is_open(self) -> bool:
        """Whether to send more records, however large the next one is."""
        return self._nbytes < _MOST_BYTES

    def send(self, last: int, nbytes: int) -> None:
        """Note that records up to a position are sent."""
        self._sent.append((last, nbytes))
        self._nbytes += nbytes

    def acknowledge(self, position: int) -> None:
        """Note that the backup has all records up to a position."""
        while self._sent and self._sent[0][0] <= position:
            self._nbytes -= self._sent.popleft()[1]
