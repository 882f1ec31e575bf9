"""Spans of OpenTelemetry, in processes that have enabled them.

A server continues a client's span over any transport, because the message contains the parent in
the form of W3C's `traceparent`. In other processes there are no spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from stratagem_proto.v1.session_pb2 import RequestKey

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

_NAME = "stratagem"
_PARENT = "traceparent"

_tracer: Tracer | None = None


def enable(provider: TracerProvider | None = None) -> None:
    """Make spans from now on.

    Args:
        provider: The provider of the spans; by default the global one of the process.

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
    """Make no more spans."""
    global _tracer
    _tracer = None


def not_installed() -> ImportError:
    """Return the error that says that OpenTelemetry is not installed."""
    return ImportError(
        "spans need OpenTelemetry, which is not installed: run "
        "`pip install 'stratagem[opentelemetry]'`"
    )


class Sending:
    """The span of a client's request, from when it is sent until it is acknowledged."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def mark(self, key: RequestKey) -> None:
        """Write the span into a request's key, so that the server continues it."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        context = set_span_in_context(self._span)
        TraceContextTextMapPropagator().inject(carrier, context)
        key.trace_parent = carrier[_PARENT]

    def end(self) -> None:
        """End the span; call it once."""
        self._span.end()

    def before(self, then: Callable[[], None]) -> Callable[[], None]:
        """Return a function that ends the span and then calls another function."""

        def both() -> None:
            self._span.end()
            then()

        return both


_NO_SPAN: AbstractContextManager[None] = nullcontext()


def sending(method: str, peer: str) -> Sending | None:
    """Begin the span of a request, as a child of the program's current one, if there are any."""
    if _tracer is None:
        return None
    from opentelemetry.trace import SpanKind

    attributes = {"rpc.method": method, "stratagem.peer": peer}
    return Sending(_tracer.start_span(method, kind=SpanKind.CLIENT, attributes=attributes))


def answering(request: Message, server: str, current: bool = True) -> AbstractContextManager[None]:
    """Return the span of a server's answer, if the request contains a client's span.

    Args:
        request: The request, or its header.
        server: The server's task.
        current: Whether to make it the current span, so that spans within are its children.
    """
    if _tracer is None:
        return _NO_SPAN
    parent = _parent(request)
    return _continued(_tracer, request, server, parent, current) if parent else _NO_SPAN


def within(name: str) -> AbstractContextManager[Any]:
    """Return a span of a part of a server's work."""
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
