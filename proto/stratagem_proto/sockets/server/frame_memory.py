"""The memory of frames from their first bytes until the handlers of their calls take them.

A frame says how large it is before it comes. Memory is taken as its bytes come, within a limit for
all connections and the share of each client. A connection for which there is none is not read until
there is, so that its client waits as for a slow network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from stratagem_proto.shares import Shares
from stratagem_proto.sockets.frames import LARGEST_FRAME_BYTES

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
        if fits and shares.of(client) + nbytes <= shares.share(client):
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
