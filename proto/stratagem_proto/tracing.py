"""Spans of OpenTelemetry, in processes that have asked for them.

A span of a client is continued by the server, wherever the request travels: the parent is a part of
the message, in the form of W3C's `traceparent`. While nobody has asked, spans are objects that do
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import Message

from stratagem_proto.v1.session_pb2 import RequestKey

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

_NAME = "stratagem"
_PARENT = "traceparent"

_tracer: Tracer | None = None


def enable(provider: TracerProvider | None = None) -> None:
    """Have spans made from now on.

    Args:
        provider: Takes them; by default the one that the process has set globally.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    global _tracer
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise not_installed() from error
    _tracer = (provider or trace.get_tracer_provider()).get_tracer(_NAME)


def disable() -> None:
    """Have no more spans made."""
    global _tracer
    _tracer = None


def not_installed() -> ImportError:
    """Return the error of who has no OpenTelemetry."""
    return ImportError(
        "OpenTelemetry must be installed before there are spans: run "
        "`pip install 'stratagem[opentelemetry]'`"
    )


class Sending(Protocol):
    """A request of a client, from when it is sent until it is acknowledged."""

    def mark(self, key: RequestKey) -> None:
        """Let the server continue it."""

    def end(self) -> None:
        """End it; once."""

    def before(self, then: Callable[[], None]) -> Callable[[], None]:
        """Return what ends it, and then does something else."""


class _Untraced:
    def mark(self, key: RequestKey) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Nothing has begun."""

    def before(self, then: Callable[[], None]) -> Callable[[], None]:
        return then


class _Traced:
    def __init__(self, span: Span) -> None:
        self._span = span

    def mark(self, key: RequestKey) -> None:
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        context = set_span_in_context(self._span)
        TraceContextTextMapPropagator().inject(carrier, context)
        key.trace_parent = carrier[_PARENT]

    def end(self) -> None:
        self._span.end()

    def before(self, then: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            self._span.end()
            then()

        return both


_UNTRACED = _Untraced()
_NO_SPAN: AbstractContextManager[None] = nullcontext()


def sending(method: str, peer: str) -> Sending:
    """Begin the span of a request, within the present one of the program."""
    if _tracer is None:
        return _UNTRACED
    from opentelemetry.trace import SpanKind

    attributes = {"rpc.method": method, "stratagem.peer": peer}
    return _Traced(_tracer.start_span(method, kind=SpanKind.CLIENT, attributes=attributes))


def answering(request: Message, server: str, current: bool = True) -> AbstractContextManager[None]:
    """Return a span of a server around its answer, if the client has begun one.

    Args:
        request: The request, or its header.
        server: The task.
        current: Whether what is done meanwhile belongs to it.
    """
    if _tracer is None:
        return _NO_SPAN
    parent = _parent(request)
    return _continued(_tracer, request, server, parent, current) if parent else _NO_SPAN


def within(name: str) -> AbstractContextManager[Any]:
    """Return a span around a part of what a server does."""
    return _NO_SPAN if _tracer is None else _tracer.start_as_current_span(name)


def _parent(request: Any) -> str:
    fields = request.DESCRIPTOR.fields_by_name
    holder = request.key if "key" in fields else request
    return str(getattr(holder, "trace_parent", ""))


@contextmanager
def _continued(
    tracer: Tracer, request: Message, server: str, parent: str, current: bool
) -> Iterator[None]:
    from opentelemetry.trace import SpanKind, use_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    span = tracer.start_span(
        type(request).__name__.removesuffix("Request").removesuffix("Header"),
        context=TraceContextTextMapPropagator().extract({_PARENT: parent}),
        kind=SpanKind.SERVER,
        attributes={"stratagem.server": server},
    )
    with use_span(span, end_on_exit=True) if current else _ended(span):
        yield


@contextmanager
def _ended(span: Span) -> Iterator[None]:
    try:
        yield
    finally:
        span.end()
