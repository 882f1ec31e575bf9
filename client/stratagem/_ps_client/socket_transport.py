"""Calls over sockets."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from stratagem._core.waiting import awaited, uninterrupted
from stratagem._ps_client.transport import Attempt, Call, Responses, Style, Transport
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.wire.segment import Segment, rounded_size
from stratagem_rpc.sockets.client import Endpoint, SocketLink, broken, require_ok
from stratagem_rpc.sockets.frames import FrameKind, SocketFrame, parts

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


class Links:
    """Connections to an endpoint, each of them for one call at a time. Thread-safe.

    Large tensors go through shared memory, if it `shares` and there is any.
    """

    def __init__(self, endpoint: Endpoint, shares: bool) -> None:
        self.endpoint = endpoint
        self._idle = IdleLinks()
        # A segment of more bytes was refused, by the server's budget or for want of memory, until
        # `trim` lets it be tried again.
        shares = shares and endpoint.can_share
        self._most_shared = self._wanted = sys.maxsize if shares else 0
        self._busy: set[SocketLink] = set()
        self._closed = False

    def connect(self) -> None:
        """Open the first connection; raise OSError if nobody, or not the server, answers."""
        self.give_back(SocketLink(self.endpoint), usable=True)

    def take(self, room: int, seconds: float, use: Callable[[SocketLink], None]) -> SocketLink:
        """Return a connection for a call.

        Args:
            room: Bytes of shared memory that the call would take.
            seconds: The most time to connect in.
            use: Told of it before the server has answered to it. Until it is given back, `close`
                closes it, too.

        Raises:
            OSError: Nobody answers.
            MalformedStreamError: Not the server answers.
        """
        while (idle := self._idle.take(room)) is not None and idle.stream.is_worn:
            idle.close()
        if idle is None:
            return SocketLink(self.endpoint, seconds, partial(self._begin, use))
        self._begin(use, idle)
        return idle

    def _begin(self, use: Callable[[SocketLink], None], link: SocketLink) -> None:
        self._busy.add(link)
        use(link)
        if self._closed:
            # Another thread has closed all that it knew of meanwhile.
            link.close()

    def memory_of(self, link: SocketLink, room: int) -> Segment | None:
        """Return what a link shares with the server for a call of any room; None if it sends."""
        if room > self._most_shared:
            return None
        large_enough = link.segment is not None and link.segment.nbytes >= room
        if not large_enough and not link.share(rounded_size(room)):
            self._most_shared = room - 1
            return None
        return link.segment

    def give_back(self, link: SocketLink, usable: bool) -> None:
        """End the use of a connection, after which another call can follow if it is `usable`."""
        self._busy.discard(link)
        if not usable or not self._idle.put(link):
            link.close()

    def trim(self) -> None:
        """Give up memory that was not used lately; called now and then."""
        self._idle.trim()
        self._most_shared = self._wanted

    def invalidate(self) -> None:
        """Close all that is idle: where one connection broke, others will have."""
        self._idle.clear()

    def retire(self) -> None:
        """Let the calls under way be the last ones."""
        self._idle.close()

    def close(self) -> None:
        """End all calls, and those that begin from now on."""
        self._closed = True
        self.retire()
        for link in list(self._busy):
            link.close()


class Exchange(Responses):
    """A call, which is sent when it is made; iterating over it reads its responses.

    A thread that is interrupted in the midst of either would lose the socket. Where a response is
    asked for, CallError says that the call failed.

    Args:
        links: Where it takes its connection from.
        call: The call.

    Raises:
        OSError: Nobody answers; nothing was sent.
        MalformedStreamError: Not the server answers; nothing was sent.
    """

    def __init__(self, links: Links, call: Call) -> None:
        super().__init__(iter(()))
        self._links, self._call = links, call
        self._link: SocketLink | None = None
        self._deadline = time.monotonic() + call.timeout
        self._failure: BaseException | None = None
        self._sender: threading.Thread | None = None
        self._over = self._is_given_up = False
        try:
            awaited(self._begin, self.cancel)
        except BaseException:
            self.cancel()
            raise

    def _begin(self) -> None:
        call = self._call
        link = self._links.take(call.room, call.timeout, self._use)
        segment = self.segment = self._shared(link)
        if call.uploads and call.style is Style.SENT and segment is None:
            # Calls of other servers follow, and large ones are to go at the same time: else workers
            # that all begin with the same server would fill one link after the other.
            self._sender = threading.Thread(target=self._send, args=(link,), daemon=True)
            self._sender.start()
        else:
            self._send(link)

    def _shared(self, link: SocketLink) -> Segment | None:
        if not self._call.room:
            return None
        try:
            link.allow_until(self._deadline)
            return self._links.memory_of(link, self._call.room)
        except OSError as error:
            self._failure = error.with_traceback(None)
            return None

    def _send(self, link: SocketLink) -> None:
        if self._failure is not None:
            return
        try:
            link.allow_until(self._deadline)
            self._send_messages(link)
        except BaseException as error:
            # The traceback would keep the caller's frames alive, and the lock that they hold.
            self._failure = error.with_traceback(None)

    def _use(self, link: SocketLink) -> None:
        self._link = link
        if self._is_given_up:
            self._end(usable=False)

    def _send_messages(self, link: SocketLink) -> None:
        kind, path = FrameKind.CALL, self._call.path.encode()
        messages = self._call.encode(self.segment)
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
            if self._link is not None:
                self._end(usable=True)
            raise StopIteration
        try:
            message = awaited(self._next_message, self.cancel)
        except (OSError, MalformedStreamError) as error:
            self.cancel()
            self._links.invalidate()
            raise broken(error) from error
        except BaseException:
            self.cancel()
            raise
        if message is None:
            raise StopIteration
        self.received(len(message))
        return message

    def _next_message(self) -> bytes | None:
        if self._sender is not None:
            self._sender.join()
            self._sender = None
        if self._failure is not None:
            raise self._failure
        link = self._link
        if link is None:
            raise ConnectionAbortedError("the call was given up")
        frame = link.receive(self._deadline)
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
        if self._link is not None:
            self._end(usable=False)

    def _end(self, usable: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._links.give_back(link, usable)


class Pipeline:
    """Sends calls of one message, whose answers are asked for in the same order.

    Calls are kept until they are pushed on, which comes before their answers are asked for. Those
    that follow each other closely are then sent, and read, at once.

    One thread at a time sends or pushes, and one at a time receives. Where one call fails to come
    through, or is given up, so do all that are under way.

    The constructor raises OSError if nobody, or not the server, answers at the endpoint.
    """

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self._link = SocketLink(endpoint, seconds)
        self._kept: list[bytes] = []
        self._failure: OSError | None = None
        self._sent = self._answered = 0
        self._leaves = False
        self.is_broken = False

    def send(self, call: Call) -> Attempt:
        """Take a call in; where it cannot be sent, its responses say so."""
        try:
            self._link.allow(call.timeout)
        except OSError as error:
            self._fail(error)
        (message,) = call.encode(None)
        self._kept += parts(FrameKind.CALL, message, is_last=True, path=call.path.encode())
        self._sent += 1
        turn = _Turn(self)
        return Attempt(Responses(turn.responses()), turn, self.push)

    def push(self) -> None:
        """Send what is kept."""
        kept, self._kept = b"".join(self._kept), []
        if kept:
            try:
                self._link.send_all((kept,))
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Break the connection off, as nothing can be sent."""
        self._failure = error
        self.break_off()

    def next_frame(self) -> SocketFrame:
        """Wait for the next answer; raise OSError or MalformedStreamError if none comes."""
        if self._failure is not None:
            raise self._failure
        frame = self._link.receive()
        self._answered += 1
        self._close_if_over()
        return frame

    @property
    def is_worn(self) -> bool:
        """Whether calls to come should go by another pipeline."""
        return self._link.stream.is_worn

    def leave(self) -> None:
        """Take no more calls; the last answer closes the connection."""
        self.push()
        self._leaves = True
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._leaves and self._answered == self._sent:
            self.break_off()

    def break_off(self) -> None:
        """Give up all that is under way. May be called again."""
        self.is_broken = True
        self._link.close()


class _Turn:
    """One call; its answer is the next one when it is asked for."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._answered = False

    def responses(self) -> Iterator[bytes]:
        """Yield the one response; raise CallError if the call failed."""
        try:
            frame = self._pipeline.next_frame()
        except (OSError, MalformedStreamError) as error:
            raise broken(error) from error
        self._answered = True
        if frame.kind == FrameKind.STATUS:
            return require_ok(frame)
        yield cast(bytes, frame.message)

    def cancel(self) -> None:
        if not self._answered:
            self._pipeline.break_off()


class SocketTransport(Transport):
    """Calls a server over sockets. Thread-safe.

    Each call has a connection for itself, which its thread writes and reads; only those that are
    pipelined share one. Large tensors go through shared memory, if it `shares` and there is any.
    """

    def __init__(self, endpoint: Endpoint, shares: bool = True) -> None:
        self.way = endpoint.way
        self._links = Links(endpoint, shares)
        self._pipeline: Pipeline | None = None
        # Those that are worn, while answers are to come.
        self._leaving: list[Pipeline] = []
        self._closed = False

    def connect(self) -> None:
        """Open the first connection; raise OSError if nobody, or not the server, answers."""
        self._links.connect()

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
            return self._pipeline_for(call).send(call)
        exchange = Exchange(self._links, call)
        return Attempt(exchange, exchange)

    def _pipeline_for(self, call: Call) -> Pipeline:
        pipeline = self._pipeline
        if pipeline is not None and not pipeline.is_broken and pipeline.is_worn:
            pipeline.leave()
            self._leaving = [each for each in (*self._leaving, pipeline) if not each.is_broken]
            pipeline = None
        if pipeline is None or pipeline.is_broken:
            with uninterrupted():
                pipeline = self._pipeline = Pipeline(self._links.endpoint, call.timeout)
        if self._closed:
            # Another thread has closed all that it knew of meanwhile.
            pipeline.break_off()
        return pipeline

    def trim(self) -> None:
        self._links.trim()

    def invalidate(self) -> None:
        """Close all that is idle: where one connection broke, others will have."""
        self._links.invalidate()

    def retire(self) -> None:
        """Let the calls under way be the last ones; those that are pipelined fail."""
        self._links.retire()
        for pipeline in (self._pipeline, *self._leaving):
            if pipeline is not None:
                pipeline.break_off()

    def close(self) -> None:
        self._closed = True
        self.retire()
        self._links.close()
