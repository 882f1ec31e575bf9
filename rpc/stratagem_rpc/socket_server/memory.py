"""The memory of a client of a socket: that of its frames on their way, and that which it shares."""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from stratagem_proto.errors import MalformedStreamError, ResourceExhaustedError
from stratagem_proto.wire.segment import Segment, attach, size_of
from stratagem_rpc.shares import Shares
from stratagem_rpc.sockets.frames import LARGEST_FRAME_BYTES, FrameReader, SocketFrame
from stratagem_rpc.sockets.streams import PlainStream, require_some

# A frame says how large it is before it comes. Memory is taken as its bytes come, within a limit
# for all connections and the share of each client. A connection for which there is none is not
# read until there is, so that its client waits as for a slow network.

ClientOf: TypeAlias = Callable[[bytes], str | None]
"""Returns the label of the client whose open session that is, by its id; None if it is not open."""

# The least limit: one client alone may send the largest frame in its share.
LEAST_BYTES = LARGEST_FRAME_BYTES * 4 // 3 + 1

# Sessions that have ended, and whose clients may open them again, have a share together.
_NOT_OPEN = "sessions that are not open"


class FrameMemory:
    """Counts the bytes of frames, by client; used on the event loop.

    Args:
        limit: The most bytes of all; `LEAST_BYTES` if that is less.
        client_of: Tells clients by their sessions.
    """

    def __init__(self, limit: int, client_of: ClientOf) -> None:
        self.client_of = client_of
        self._shares = Shares(max(limit, LEAST_BYTES))
        self._waiting: dict[PeerFrames, None] = {}
        self._retrying: asyncio.Handle | None = None

    @property
    def used(self) -> int:
        """The bytes that are taken."""
        return self._shares.used

    def client(self, session_id: bytes) -> str:
        """Return the client in whose share the frames of a session count."""
        return self.client_of(session_id) or _NOT_OPEN

    def take(self, nbytes: int, client: str, frames: PeerFrames) -> bool:
        """Count bytes that a connection takes; if there are too few, it waits for them."""
        shares = self._shares
        fits = nbytes <= shares.limit - shares.used
        if fits and shares.used_by(client) + nbytes <= shares.share(client):
            shares.count(client, nbytes)
            return True
        self._waiting[frames] = None
        return False

    def give_back(self, nbytes: int, client: str) -> None:
        """Count bytes no more, and let those that wait try again, the first one first."""
        if nbytes:
            self._shares.count(client, -nbytes)
            if self._waiting and self._retrying is None:
                self._retrying = asyncio.get_running_loop().call_soon(self._retry)

    def _retry(self) -> None:
        self._retrying = None
        waiting, self._waiting = self._waiting, {}
        for frames in waiting:
            # One that still has too few gets in line again, in the same order.
            frames.retry()

    def leave(self, frames: PeerFrames) -> None:
        """Note that a connection waits no more."""
        self._waiting.pop(frames, None)


class PeerFrames:
    """The memory that one connection has for its frames.

    Args:
        memory: That of all connections.
        session_id: Returns the session that the connection acts for.
        retry: Called when the connection may try again to take what it waits for.
    """

    def __init__(
        self, memory: FrameMemory, session_id: Callable[[], bytes], retry: Callable[[], None]
    ) -> None:
        self.retry = retry
        self._memory, self._session_id = memory, session_id
        self._client, self._nbytes = "", 0
        self._closed = False

    def take(self, nbytes: int) -> bool:
        """Take bytes; return False if there are too few now."""
        if not self._nbytes:
            self._client = self._memory.client(self._session_id())
        taken = self._memory.take(nbytes, self._client, self)
        self._nbytes += nbytes * taken
        return taken

    def give_back(self, nbytes: int) -> None:
        """Give bytes of a frame back whose message is taken, or not needed."""
        if nbytes and not self._closed:
            self._nbytes -= nbytes
            self._memory.give_back(nbytes, self._client)

    def close(self) -> None:
        """Give everything back; nothing is taken any more."""
        self._memory.leave(self)
        self.give_back(self._nbytes)
        self._closed = True


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
        return reader.received(nbytes or require_some(nbytes))
