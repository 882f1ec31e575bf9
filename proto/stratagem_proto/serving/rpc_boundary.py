"""The place where errors of the tree become statuses of gRPC."""

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
from stratagem_proto.serving.figures import Calls, Figures
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.status import code_of, to_record, trailers


class Context(Protocol):
    """What a handler needs of the context of its call, over gRPC or a socket."""

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
    """A call whose responses may be written without the event loop, by any thread."""

    @property
    def is_clear(self) -> bool:
        """Whether all responses so far are sent."""

    def write_at_once(self, message: bytes, /) -> None:
        """Send one response of several; do not wait for the client to read."""


def direct(context: Context) -> DirectContext | None:
    """Return the same call, if it is such a one; those by gRPC are not."""
    found: Any = context
    return found if hasattr(found, "write_at_once") else None


def divert(messages: object, take: Callable[[bytes], None]) -> None:
    """Have a call's messages given to a function as they come, where that is possible.

    Those of a call by gRPC are left to who iterates over them, as is the end.
    """
    found: Any = messages
    if hasattr(found, "divert"):
        found.divert(take)


def shared_memory(context: Context) -> Segment | None:
    """Return the memory that the client of a call shares; a call by gRPC has none."""
    segment: Segment | None = getattr(context, "segment", None)
    return segment


def is_over(messages: object) -> bool:
    """Return whether a call is known to bring no more messages; False by gRPC."""
    over: bool = getattr(messages, "is_over", False)
    return over


# A status travels in headers, for which gRPC has 8 KiB in all. Characters outside of ASCII take
# three times their bytes.
_MESSAGE_BYTES = 1600
_DETAIL_BYTES = 520


class RpcBoundary:
    """What every call of a server passes through, and is counted at."""

    def __init__(self, task: str, figures: Figures) -> None:
        self._task = task
        self._figures = figures
        self._log = LOG.bind(task=task)

    def crossing(self, context: Context, request: str) -> AbstractAsyncContextManager[None, None]:
        """End the call with the status of whatever the body raises.

        Args:
            context: The call.
            request: Name of the message that it begins with.
        """
        return _Crossing(self, self._figures.calls(request), context, request)

    def span(self, request: Message, current: bool = True) -> AbstractContextManager[None]:
        """Return a span around the answer, as `tracing.answering` says."""
        return tracing.answering(request, self._task, current)

    def recorded(self, request: str, error: Exception) -> RecordedStatus:
        """Return the status of a call that has failed, of which the log then tells."""
        if isinstance(error, DecodeError):
            error = InvalidArgumentError(f"the request is no {request}")
        if isinstance(error, StratagemError):
            error.task = error.task or self._task
            self._log.info(
                "refused", request=request, error=type(error).__name__, why=error.message
            )
        else:
            self._log.error("failed", request=request, exc_info=error)
        return _fitting(to_record(error))


class _Crossing:
    """One call of those that a boundary counts; see `RpcBoundary.crossing`."""

    __slots__ = ("_began", "_boundary", "_calls", "_context", "_request")

    def __init__(self, boundary: RpcBoundary, calls: Calls, context: Context, request: str) -> None:
        self._boundary, self._calls = boundary, calls
        self._context, self._request = context, request

    async def __aenter__(self) -> None:
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
    """Return a status that does not drown in what a client has sent, say, as a name."""
    record.message = _shortened(record.message, _MESSAGE_BYTES)
    record.detail.variable = _shortened(record.detail.variable, _DETAIL_BYTES)
    record.detail.location = _shortened(record.detail.location, _DETAIL_BYTES)
    return record


def _shortened(text: str, nbytes: int) -> str:
    data = text.encode()
    if len(data) <= nbytes:
        return text
    return data[:nbytes].decode(errors="ignore") + "..."
