"""Calls of a server over sockets."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

from stratagem._core.interruption import awaited
from stratagem._ps_client.transports.call import Attempt, Call, Responses, Style
from stratagem._ps_client.transports.pipeline import Pipeline
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.sockets.client.endpoints import Endpoint
from stratagem_proto.sockets.client.errors import broken, require_ok
from stratagem_proto.sockets.client.link import SocketLink
from stratagem_proto.sockets.frames import FrameKind, SocketFrame
from stratagem_proto.wire.segment import Segment, grown


class SocketTransport:
    """Calls a server over sockets. Thread-safe.

    Each call has a connection for itself, which its thread writes and reads; only those that are
    pipelined share one. Large tensors go through shared memory, if it `shares` and there is any.
    """

    def __init__(self, endpoint: Endpoint, shares: bool = True) -> None:
        self.endpoint = endpoint
        self._idle = IdleLinks()
        # More than that the server's budget, or the system, had no memory for; `trim` tries again.
        shares = shares and endpoint.can_share
        self._most_shared = self._wanted = sys.maxsize if shares else 0
        self._busy: set[SocketLink] = set()
        self._pipeline: Pipeline | None = None
        # Those that are worn, while answers are to come.
        self._leaving: list[Pipeline] = []
        self._closed = False

    def connect(self) -> None:
        """Open the first connection; raise OSError if nobody, or not the server, answers."""
        self.give_back(SocketLink(self.endpoint), usable=True)

    def send(self, call: Call) -> Attempt:
        """Begin a call.

        Raises:
            OSError: The transport is closed, or the server does not answer there any more; nothing
                was sent.
            MalformedStreamError: Somebody else answers there; nothing was sent.
        """
        if self._closed:
            raise ConnectionAbortedError("the transport is closed")
        if call.style is Style.PIPELINED:
            return self._pipelined(call)
        deadline = time.monotonic() + call.timeout
        link = self._taken(call.room) or self._greeted(call.timeout)
        self._busy.add(link)
        if self._closed:
            # Another thread has closed all that it knew of meanwhile.
            link.close()
        exchange = _Exchange(self, link, call, deadline)
        return Attempt(Responses(exchange, exchange.segment), exchange)

    def _taken(self, room: int) -> SocketLink | None:
        """Return a link that is idle, and close those that are worn; None if there is none."""
        while (link := self._idle.take(room)) is not None and link.is_worn:
            link.close()
        return link

    def _greeted(self, seconds: float) -> SocketLink:
        """Open a connection, which `close` also ends while the server is greeted."""
        begun: list[SocketLink] = []

        def begin(link: SocketLink) -> None:
            begun.append(link)
            self._busy.add(link)
            if self._closed:
                link.close()

        try:
            return SocketLink(self.endpoint, seconds, begin)
        except BaseException:
            self._busy.difference_update(begun)
            raise

    def _pipelined(self, call: Call) -> Attempt:
        pipeline = self._pipeline
        if pipeline is not None and not pipeline.is_broken and pipeline.is_worn:
            self._leave(pipeline)
            pipeline = None
        if pipeline is None or pipeline.is_broken:
            pipeline = self._pipeline = Pipeline(self.endpoint, call.timeout)
        if self._closed:
            # Another thread has closed all that it knew of meanwhile.
            pipeline.break_off()
        return pipeline.send(call)

    def _leave(self, pipeline: Pipeline) -> None:
        pipeline.leave()
        self._leaving = [each for each in (*self._leaving, pipeline) if not each.is_broken]

    def memory_of(self, link: SocketLink, room: int) -> Segment | None:
        """Return what a link shares with the server for a call; None if it is to send."""
        if not 0 < room <= self._most_shared:
            return None
        large_enough = link.segment is not None and link.segment.nbytes >= room
        if not large_enough and not link.share(grown(room)):
            self._most_shared = room - 1
            return None
        return link.segment

    def trim(self) -> None:
        """Give up memory that was not used lately; called now and then."""
        self._idle.trim()
        self._most_shared = self._wanted

    def give_back(self, link: SocketLink, usable: bool) -> None:
        """End the use of a connection, after which another call can follow if it is `usable`."""
        self._busy.discard(link)
        if not usable or not self._idle.put(link):
            link.close()

    def distrust(self) -> None:
        """Close all that is idle: where one connection broke, others will have."""
        self._idle.clear()

    def retire(self) -> None:
        """Let the calls under way be the last ones; those that are pipelined fail."""
        self._idle.close()
        for pipeline in (self._pipeline, *self._leaving):
            if pipeline is not None:
                pipeline.break_off()

    def close(self) -> None:
        """End all calls; none can be begun any more."""
        self._closed = True
        self.retire()
        for link in list(self._busy):
            link.close()


class _Exchange(Iterator[bytes]):
    """One call, which is sent at once; iterating over it reads its responses.

    Where a response is asked for, CallError says that the call failed. Messages may name places
    in the `segment`, if there is one.
    """

    def __init__(
        self, transport: SocketTransport, link: SocketLink, call: Call, deadline: float
    ) -> None:
        self.segment: Segment | None = None
        self._transport = transport
        self._link: SocketLink | None = link
        self._deadline = deadline
        self._failure: OSError | None = None
        self._over = False
        try:
            link.allow_until(deadline)
            self._send(link, call)
        except OSError as error:
            # The traceback would keep the caller's frames alive, and the lock that they hold.
            self._failure = error.with_traceback(None)
        except BaseException:
            self.cancel()
            raise

    def _send(self, link: SocketLink, call: Call) -> None:
        kind, path = FrameKind.CALL, call.path.encode()
        self.segment = self._transport.memory_of(link, call.room)
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
            self._transport.distrust()
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
        self._end(usable=False)

    def _end(self, usable: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._transport.give_back(link, usable)


# Kept open while there is nothing to call; more are closed.
_MOST = 8


class IdleLinks:
    """Keeps those that share memory apart, so that small calls leave them alone."""

    def __init__(self) -> None:
        self._plain: list[SocketLink] = []
        self._sharing: list[SocketLink] = []
        # Those that nobody has used since the last `trim`.
        self._stale: set[SocketLink] = set()
        self._lock = threading.Lock()
        self._closed = False

    def take(self, room: int) -> SocketLink | None:
        """Return the best link for a call that would share `room` bytes, if there is any."""
        with self._lock:
            if room and self._sharing:
                if len(self._sharing) == 1:
                    return self._sharing.pop()
                best = min(self._sharing, key=lambda link: _waste(link, room))
                self._sharing.remove(best)
                return best
            return self._plain.pop() if self._plain else None

    def put(self, link: SocketLink) -> bool:
        """Take a link back; return whether there is place for it."""
        with self._lock:
            links = self._plain if link.segment is None else self._sharing
            if self._closed or len(links) >= _MOST:
                return False
            links.append(link)
            self._stale.discard(link)
            return True

    def trim(self) -> None:
        """Close those that share memory and had no call since this was last called."""
        with self._lock:
            for link in self._stale.intersection(self._sharing):
                self._sharing.remove(link)
                link.close()
            self._stale = set(self._sharing)

    def close(self) -> None:
        """Close all, and take none back any more."""
        self._closed = True
        self.clear()

    def clear(self) -> None:
        """Close all."""
        with self._lock:
            for links in (self._plain, self._sharing):
                while links:
                    links.pop().close()


def _waste(link: SocketLink, room: int) -> tuple[bool, int]:
    nbytes = link.segment.nbytes if link.segment else 0
    return nbytes < room, abs(nbytes - room)
