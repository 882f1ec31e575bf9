"""Spans of OpenTelemetry around what a program asks of its servers.

Needs the package `opentelemetry-sdk`: `pip install 'stratagem[opentelemetry]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratagem_rpc import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["disable", "enable"]


def enable(tracer_provider: TracerProvider | None = None) -> None:
    """Make a span of each request to a server, from now on and in this process.

    It begins within the present span of the program when the request is sent, and ends when that is
    acknowledged. Servers that have spans, too (`stratagem ps --traces`), continue it by theirs.

    Args:
        tracer_provider: Takes the spans; by default the one that the program has set.

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    tracing.enable(tracer_provider)


def disable() -> None:
    """Make no more spans."""
    tracing.disable()
