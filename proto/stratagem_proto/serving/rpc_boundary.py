"""The boundary of a server's RPCs, where errors become statuses of gRPC."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError, Message
from grpc.aio import AbortError

from stratagem_proto import tracing
from stratagem_proto.errors import InvalidArgumentError, StratagemError
from stratagem_proto.server_log import LOG
from stratagem_proto.serving.callers import arrived
from stratagem_proto.serving.figures import Calls, Figures
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.status import code_of, to_record, trailers


class Context(Protocol):
    """The context of a call by gRPC or over a socket, as far as handlers use it."""

    async def write(self, message: bytes, /) -> None:
        """Send one response of several."""

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = ...,
        trailing_metadata: tuple[tuple[str, str | bytes], ...] = ...,
    ) -> NoReturn:
        """End the call with a status."""


class DirectContext(Protocol):
    """A call whose responses may be written in any thread, without the event loop."""

    @property
    def is_clear(self) -> bool:
        """Whether all responses so far are sent."""

    def write_at_once(self, message: bytes, /) -> None:
        """Send one response of several, without waiting for the client to read it."""


def direct(context: Context) -> DirectContext | None:
    """Return the call if its responses may be written in any thread; None if it is by gRPC."""
    found: Any = context
    return found if hasattr(found, "write_at_once") else None


def divert(messages: object, take: Callable[[bytes], None]) -> None:
    """Pass the messages of a call over a socket to a function as they arrive.

    The end of the call is still for the iterator, and so are the messages of a call by gRPC.
    """
    found: Any = messages
    if hasattr(found, "divert"):
        found.divert(take)


def shared_memory(context: Context) -> Segment | None:
    """Return the memory that the client of a call shares; None for calls by gRPC."""
    segment: Segment | None = getattr(context, "segment", None)
    return segment


def is_over(messages: object) -> bool:
    """Return whether a call is known to have no more messages; always False by gRPC."""
    over: bool = getattr(messages, "is_over", False)
    return over


# A status is sent in headers, which gRPC limits to 8 KiB in all. Characters outside of ASCII take
# three times their bytes there.
_MESSAGE_BYTES = 1600
_DETAIL_BYTES = 520


class RpcBoundary:
    """The boundary that every call of a server crosses: it counts calls and encodes errors."""

    def __init__(self, task: str, figures: Figures) -> None:
        self._task = task
        self._figures = figures
        self._log = LOG.bind(task=task)

    def crossing(self, context: Context, request: str) -> AbstractAsyncContextManager[None, None]:
        """Return a context that ends the call with the status of an error that its block raises.

        Args:
            context: The call.
            request: The name of the call's first message.
        """
        return _Crossing(self, self._figures.calls(request), context, request)

    def span(self, request: Message, current: bool = True) -> AbstractContextManager[None]:
        """Return the span of the answer; see `tracing.answering`."""
        return tracing.answering(request, self._task, current)

    def recorded(self, request: str, error: Exception) -> RecordedStatus:
        """Log the error of a failed call, and return its status."""
        if isinstance(error, DecodeError):
            error = InvalidArgumentError(f"the request is not a {request}")
        if isinstance(error, StratagemError):
            error.task = error.task or self._task
            self._log.info(
                "refused", request=request, error=type(error).__name__, why=error.message
            )
        else:
            self._log.error("failed", request=request, exc_info=error)
        return _fitting(to_record(error))


class _Crossing:
    """The crossing of one call; see `RpcBoundary.crossing`."""

    __slots__ = ("_began", "_boundary", "_calls", "_context", "_request")

    def __init__(self, boundary: RpcBoundary, calls: Calls, context: Context, request: str) -> None:
        self._boundary, self._calls = boundary, calls
        self._context, self._request = context, request

    async def __aenter__(self) -> None:
        arrived(self._context)
        self._began = self._calls.begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        code = "OK" if error is None else "CANCELLED"
        try:
            if isinstance(error, Exception) and not isinstance(error, AbortError):
                record = self._boundary.recorded(self._request, error)
                code = code_of(record).name
                await self._context.abort(code_of(record), record.message, trailers(record))
        finally:
            self._calls.end(self._began, code)


def _fitting(record: RecordedStatus) -> RecordedStatus:
    """Shorten the texts of a status, which may contain long names that a client has sent."""
    record.message = _shortened(record.message, _MESSAGE_BYTES)
    record.detail.variable = _shortened(record.detail.variable, _DETAIL_BYTES)
    record.detail.location = _shortened(record.detail.location, _DETAIL_BYTES)
    return record


def _shortened(text: str, nbytes: int) -> str:
    data = text.encode()
    if len(data) <= nbytes:
        return text
    return data[:nbytes].decode(errors="ignore") + "..."
