"""Spans of a server process, on their way to a collector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stratagem_proto import tracing


@contextmanager
def exported_spans(server: str) -> Iterator[None]:
    """Sends spans where the variables of OpenTelemetry say; all of them, at the end.

    Args:
        server: The task, for instance "ps:0".

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise tracing.not_installed() from error
    names = {"service.name": "stratagem", "service.instance.id": server}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracing.enable(provider)
    try:
        yield
    finally:
        tracing.disable()
        provider.shutdown()
