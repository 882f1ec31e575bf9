"""One call on a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

from stratagem._core.waiting import awaited
from stratagem._ps_client.transports.call import Call
from stratagem._ps_client.transports.links import Links
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.sockets.client import SocketLink, broken, require_ok
from stratagem_proto.sockets.frames import FrameKind, SocketFrame
from stratagem_proto.wire.segment import Segment


class Exchange(Iterator[bytes]):
    """A call, which is sent when it begins; iterating over it reads its responses.

    Where a response is asked for, CallError says that the call failed. Messages may name places
    in the `segment`, if there is one.

    Args:
        links: Where it takes its connection from.
        deadline: When the last response must have come, in seconds of `time.monotonic`.
    """

    def __init__(self, links: Links, deadline: float) -> None:
        self.segment: Segment | None = None
        self._links = links
        self._link: SocketLink | None = None
        self._deadline = deadline
        self._failure: OSError | None = None
        self._over = self._is_given_up = False

    def begin(self, call: Call) -> None:
        """Send a call.

        A thread that is interrupted in the midst of it would lose the socket.

        Raises:
            OSError: Nobody answers; nothing was sent.
            MalformedStreamError: Not the server answers; nothing was sent.
        """
        try:
            awaited(partial(self._begin, call), self.cancel)
        except BaseException:
            self.cancel()
            raise

    def _begin(self, call: Call) -> None:
        link = self._links.take(call.room, call.timeout, self._use)
        try:
            link.allow_until(self._deadline)
            self._send(link, call)
        except OSError as error:
            # The traceback would keep the caller's frames alive, and the lock that they hold.
            self._failure = error.with_traceback(None)

    def _use(self, link: SocketLink) -> None:
        self._link = link
        if self._is_given_up:
            self._end(usable=False)

    def _send(self, link: SocketLink, call: Call) -> None:
        kind, path = FrameKind.CALL, call.path.encode()
        self.segment = self._links.memory_of(link, call.room)
        messages = call.encode(self.segment)
        held = next(messages)
        for message in messages:
            link.send(kind, held, False, path)
            link.allow_until(self._deadline)
            kind, path, held = FrameKind.MESSAGE, b"", message
            if link.is_answered:
                held = b""
                break
        link.send(kind, held, True, path)

    def __next__(self) -> bytes:
        if self._over:
            self._end(usable=True)
            raise StopIteration
        try:
            message = awaited(self._next_message, self.cancel)
        except (OSError, MalformedStreamError) as error:
            self.cancel()
            self._links.distrust()
            raise broken(error) from error
        except BaseException:
            self.cancel()
            raise
        if message is None:
            raise StopIteration
        return message

    def _next_message(self) -> bytes | None:
        if self._failure is not None:
            raise self._failure
        link = self._link
        if link is None:
            raise ConnectionAbortedError("the call was given up")
        return self._taken(link.receive(self._deadline))

    def _taken(self, frame: SocketFrame) -> bytes | None:
        self._over = frame.is_last
        # What is in the segment must stay until it was taken.
        if (self._over and self.segment is None) or frame.kind == FrameKind.STATUS:
            self._end(usable=True)
        if frame.kind == FrameKind.STATUS:
            require_ok(frame)
            return None
        # A view of memory does wherever messages are taken apart.
        return cast("bytes", frame.message)

    def cancel(self) -> None:
        """Give the call up, if it has not ended."""
        self._is_given_up = True
        self._end(usable=False)

    def _end(self, usable: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._links.give_back(link, usable)
