"""The memory that one client of a socket shares with the server."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from stratagem_proto.errors import MalformedStreamError, ResourceExhaustedError
from stratagem_proto.wire.segment import Segment, attach, size_of

# Of one descriptor, or two where that is aligned to eight bytes; the system closes those for which
# there is no room.
ANCILLARY_BYTES = socket.CMSG_SPACE(array("i").itemsize)


class Reserved(Protocol):
    """Bytes of a budget."""

    def release(self) -> None:
        """Give them back."""


Reserve = Callable[[int], Reserved]
"""Takes bytes of a budget; raises `ResourceExhaustedError` if there are too few."""


def refused(nbytes: int) -> Reserved:
    """Return the budget of a server that shares no memory.

    Raises:
        ResourceExhaustedError: Always.
    """
    raise ResourceExhaustedError("this server shares no memory with its clients")


class PeerMemory:
    """At most one segment at a time.

    Args:
        reserve: The budget that it counts in.

    Attributes:
        segment: What there is; None if nothing is shared.
    """

    def __init__(self, reserve: Reserve) -> None:
        self.segment: Segment | None = None
        self._reserve = reserve
        self._reserved: Reserved | None = None
        self._descriptors: list[int] = []

    def arrived(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        """Take descriptors in, that have come with bytes of the socket.

        Raises:
            MalformedStreamError: There is one already that nothing was said about.
        """
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array("i", data))
        if len(self._descriptors) > 1:
            raise MalformedStreamError("descriptors came that no frame is about")

    def replace(self) -> None:
        """Map the segment that has come, in place of the one before.

        Raises:
            MalformedStreamError: None has come, or its memory could go away.
            ResourceExhaustedError: The budget, or the system, has no room for it.
        """
        self._unmap()
        if not self._descriptors:
            raise MalformedStreamError("a frame is about a segment, and none came")
        fd = self._descriptors.pop()
        try:
            self._map(fd)
        finally:
            os.close(fd)

    def _map(self, fd: int) -> None:
        nbytes = size_of(fd)
        reserved = self._reserve(nbytes)
        try:
            self.segment = attach(fd, nbytes)
        except OSError as error:
            reserved.release()
            raise ResourceExhaustedError(
                f"a segment of {nbytes} bytes cannot be mapped: {error}; send in "
                "messages what it was for"
            ) from error
        self._reserved = reserved

    def _unmap(self) -> None:
        # What a call still uses of it stays until that ends.
        self.segment = None
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def close(self) -> None:
        """Give everything back."""
        self._unmap()
        while self._descriptors:
            os.close(self._descriptors.pop())
