"""The figures of servers of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from stratagem_proto.serving.metrics.families import Families
from stratagem_proto.v1.session_pb2 import Role
from stratagem_proto.v1.status_pb2 import GetStatusResponse

_METHOD = ("method",)


def of_any_server(status: GetStatusResponse, families: Families) -> Iterator[Metric]:
    """Yield the families of a server that do not depend on its kind."""
    yield families.number("uptime_seconds", "Time since the server started.", status.uptime_seconds)
    yield families.gauge(
        "sessions", "Clients with an open session.", _by_role(status).items(), ("role",)
    )
    yield from _requests(status, families)


def _by_role(status: GetStatusResponse) -> dict[tuple[str], int]:
    roles = Counter(session.role for session in status.sessions)
    return {
        (Role.Name(role).removeprefix("ROLE_").lower(),): number for role, number in roles.items()
    }


def _requests(status: GetStatusResponse, families: Families) -> Iterator[Metric]:
    methods = status.methods
    yield families.counter(
        "requests",
        "Requests that have ended, by the status that they ended with.",
        [
            ((each.method, code), count)
            for each in methods
            for code, count in sorted(each.ended.items())
        ],
        ("method", "code"),
    )
    yield families.gauge(
        "requests_in_progress",
        "Requests that are being answered.",
        [((each.method,), each.in_progress) for each in methods],
        _METHOD,
    )
    yield families.histogram(
        "request_seconds",
        "How long requests took; a push is an Update, a pull a Read.",
        [((each.method,), each.seconds) for each in methods],
        _METHOD,
    )
    yield families.histogram(
        "received_bytes",
        "Bytes of tensors that a request brought.",
        [((each.method,), each.received_bytes) for each in methods],
        _METHOD,
    )
    yield families.histogram(
        "sent_bytes",
        "Bytes of tensors that a request was answered with.",
        [((each.method,), each.sent_bytes) for each in methods],
        _METHOD,
    )
