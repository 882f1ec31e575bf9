"""Calls over a Unix socket, of a server on the same host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import grpc

from stratagem._servers.transports.attempt import Attempt, Call
from stratagem._servers.transports.local_link import LocalLink
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.local.frames import Frame, Kind
from stratagem_proto.status import code_of, trailers
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.session_pb2 import LocalSocket

# Connections that are kept open while there is nothing to call.
_MAX_IDLE = 8


class LocalError(grpc.RpcError):
    """A call that failed, with what gRPC's errors have."""

    def __init__(self, status: RecordedStatus) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> grpc.StatusCode:
        return code_of(self._status)

    def details(self) -> str:
        return self._status.message

    def trailing_metadata(self) -> Any:
        return trailers(self._status)


class LocalTransport:
    """Calls a server over its local socket. Thread-safe.

    Each call has a connection for itself, which its thread writes and reads.

    Args:
        place: What the server says of the socket.
    """

    def __init__(self, place: LocalSocket) -> None:
        self.place = place
        self._idle: list[LocalLink] = []
        self._busy: set[LocalLink] = set()
        self._closed = False

    def connect(self) -> None:
        """Opens the first connection.

        Raises:
            OSError: Nobody, or not the server, answers there.
        """
        self._idle.append(LocalLink(self.place))

    def send(self, call: Call) -> Attempt:
        """Begins a call.

        Raises:
            OSError: The transport is closed, or the server does not answer there any
                more; nothing was sent.
        """
        if self._closed:
            raise ConnectionAbortedError("the transport is closed")
        exchange = _Exchange(self, self._take(), call)
        return Attempt(exchange.responses(), exchange)

    def _take(self) -> LocalLink:
        try:
            link = self._idle.pop()
        except IndexError:
            link = LocalLink(self.place)
        self._busy.add(link)
        return link

    def give_back(self, link: LocalLink, usable: bool) -> None:
        """Ends the use of a connection.

        Args:
            link: It.
            usable: Whether another call can follow.
        """
        self._busy.discard(link)
        if usable and not self._closed and len(self._idle) < _MAX_IDLE:
            self._idle.append(link)
        else:
            link.close()

    def distrust(self) -> None:
        """Closes all that is idle: where one connection broke, others will have."""
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Ends all calls; none can be begun any more."""
        self._closed = True
        self.distrust()
        for link in list(self._busy):
            link.close()


class _Exchange:
    """One call: sent at once, its responses read by who asks for them."""

    def __init__(self, transport: LocalTransport, link: LocalLink, call: Call) -> None:
        self._transport = transport
        self._link: LocalLink | None = link
        self._deadline = time.monotonic() + call.timeout
        self._failure: OSError | None = None
        link.allow(call.timeout)
        try:
            self._send(link, call)
        except OSError as error:
            self._failure = error
        except BaseException:
            self.cancel()
            raise

    def _send(self, link: LocalLink, call: Call) -> None:
        kind, path = Kind.CALL, call.path.encode()
        held = next(call.messages)
        for message in call.messages:
            link.send(kind, held, False, path)
            kind, path, held = Kind.MESSAGE, b"", message
            if link.is_answered:
                held = b""
                break
        link.send(kind, held, True, path)

    def responses(self) -> Iterator[bytes]:
        """The messages of the server.

        Raises:
            LocalError: The call failed.
        """
        try:
            yield from self._responses()
        except (OSError, MalformedStreamError) as error:
            raise LocalError(self._broken(error)) from error
        finally:
            self.cancel()

    def _responses(self) -> Iterator[bytes]:
        link = self._link
        if self._failure is not None:
            raise self._failure
        if link is None:
            raise ConnectionAbortedError("the call was given up")
        self._allow_what_is_left(link)
        for frame in link.frames():
            if frame.is_last:
                self._end(usable=True)
            if frame.kind == Kind.STATUS:
                return _require_ok(frame)
            # A view of memory does wherever messages are taken apart.
            yield cast(bytes, frame.message)
            if not frame.is_last:
                self._allow_what_is_left(link)

    def _allow_what_is_left(self, link: LocalLink) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for the call is over")
        link.allow(left)

    def _broken(self, error: Exception) -> RecordedStatus:
        self._transport.distrust()
        code = grpc.StatusCode.UNAVAILABLE
        if isinstance(error, TimeoutError):
            code = grpc.StatusCode.DEADLINE_EXCEEDED
        return RecordedStatus(code=code.value[0], message=f"local socket: {error}")

    def cancel(self) -> None:
        """Gives the call up, if it has not ended."""
        self._end(usable=False)

    def _end(self, usable: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._transport.give_back(link, usable)


def _require_ok(end: Frame) -> None:
    status = RecordedStatus.FromString(bytes(end.message))
    if status.code:
        raise LocalError(status)
