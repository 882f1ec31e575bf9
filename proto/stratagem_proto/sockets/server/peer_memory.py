"""The memory that one client of a socket shares with the server."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from stratagem_proto.errors import MalformedStreamError, ResourceExhaustedError
from stratagem_proto.sockets.frames import FrameReader, SocketFrame
from stratagem_proto.sockets.streams import PlainStream, require_some
from stratagem_proto.wire.segment import Segment, attach, size_of

# The size of one descriptor, or of two on systems that align to eight bytes. The system closes
# further ones.
_ANCILLARY_BYTES = socket.CMSG_SPACE(array("i").itemsize)


class Reserved(Protocol):
    """Bytes of a budget."""

    def release(self) -> None:
        """Release the bytes."""


Reserve = Callable[[int, bytes], Reserved]
"""Takes bytes of a budget for the session of that id; raises `ResourceExhaustedError` if there are
too few."""


def refused(nbytes: int, session_id: bytes) -> Reserved:
    """Refuse to reserve bytes, as a server does that shares no memory.

    Raises:
        ResourceExhaustedError: Always.
    """
    raise ResourceExhaustedError("this server shares no memory with its clients")


class PeerMemory:
    """The segment of shared memory of one client, at most one at a time.

    Args:
        reserve: Takes bytes of the budget.

    Attributes:
        segment: The segment; None if no memory is shared.
    """

    def __init__(self, reserve: Reserve) -> None:
        self.segment: Segment | None = None
        self._reserve = reserve
        self._reserved: Reserved | None = None
        self._descriptors: list[int] = []

    def arrived(self, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        """Keep a descriptor that arrived with bytes of the socket, until `replace` maps it.

        Raises:
            MalformedStreamError: More than one descriptor arrived without a SEGMENT frame.
        """
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(array("i", data))
        if len(self._descriptors) > 1:
            raise MalformedStreamError("descriptors arrived without a frame for each")

    def replace(self, session_id: bytes) -> None:
        """Map the segment of the descriptor that has arrived, in place of the present one.

        Args:
            session_id: The session that the client may act for, whose share it counts in.

        Raises:
            MalformedStreamError: No descriptor has arrived, or its file is not sealed.
            ResourceExhaustedError: The budget or the system has not enough memory.
        """
        self._unmap()
        if not self._descriptors:
            raise MalformedStreamError("a frame announces a segment, but no descriptor arrived")
        fd = self._descriptors.pop()
        try:
            self._map(fd, session_id)
        finally:
            os.close(fd)

    def _map(self, fd: int, session_id: bytes) -> None:
        nbytes = size_of(fd)
        reserved = self._reserve(nbytes, session_id)
        try:
            self.segment = attach(fd, nbytes)
        except OSError as error:
            reserved.release()
            raise ResourceExhaustedError(
                f"a segment of {nbytes} bytes cannot be mapped: {error}; send the "
                "tensors in messages"
            ) from error
        self._reserved = reserved

    def _unmap(self) -> None:
        # The memory stays mapped while a call uses tensors in it.
        self.segment = None
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def close(self) -> None:
        """Release the segment and all descriptors."""
        self._unmap()
        while self._descriptors:
            os.close(self._descriptors.pop())


class SharingStream(PlainStream):
    """The bytes of a client of this host, which may come with descriptors of memory.

    Args:
        sock: A Unix socket.
        memory: Keeps the descriptors.
    """

    def __init__(self, sock: socket.socket, memory: PeerMemory) -> None:
        super().__init__(sock)
        self._memory = memory

    def frames(self, reader: FrameReader) -> list[SocketFrame]:
        """Receive once; see `Stream`."""
        nbytes, ancillary, _, _ = self._socket.recvmsg_into(
            [reader.room], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        if ancillary:
            self._memory.arrived(ancillary)
        return reader.received(require_some(nbytes))
