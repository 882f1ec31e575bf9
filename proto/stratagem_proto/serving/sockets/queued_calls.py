"""Calls that a client has pipelined behind the one being answered."""

from __future__ import annotations

from collections import deque

from stratagem_proto.wire.sockets.frames import WINDOW_BYTES, Frame

# With more, or more than the window of bytes, no more are read from the client.
_MANY = 64


class QueuedCalls:
    """Whole calls, in the order in which they came."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def are_many(self) -> bool:
        """Whether no more should be read before some are answered."""
        return len(self._frames) >= _MANY or self._nbytes > WINDOW_BYTES

    def put(self, frame: Frame) -> None:
        """Takes a call in."""
        self._frames.append(frame)
        self._nbytes += len(frame.message)

    def take(self) -> Frame:
        """Gives the next one out."""
        frame = self._frames.popleft()
        self._nbytes -= len(frame.message)
        return frame
