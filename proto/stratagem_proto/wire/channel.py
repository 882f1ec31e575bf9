"""Channels, server options and deadlines: the one place that sets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.experimental

from stratagem_proto.protocol import MAX_CHUNK_BYTES, MAX_HEADER_BYTES, PING_SECONDS

_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = int(PING_SECONDS * 1000)
_PATIENT_TIMEOUT_MS = 60_000

STALL_SECONDS = (_KEEPALIVE_MS + _KEEPALIVE_TIMEOUT_MS) / 1000
"""For how long keepalive bears with a peer of which nothing comes."""

PATIENT_SECONDS = (_KEEPALIVE_MS + _PATIENT_TIMEOUT_MS) / 1000
"""As `STALL_SECONDS`, where both ends watch each other's leases."""

MESSAGE_BYTES = MAX_HEADER_BYTES + MAX_CHUNK_BYTES

# Not unlimited: an unlimited message is memory that a stranger can take.
_MESSAGE_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
]

# Without keepalive a cut network hangs each call for its whole deadline. Both sides must be set: a
# server with defaults ends a connection that pings this often.
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that was away for 35 s is usable after 0.3 s, by default after 8.4 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Requests are repeated by us, under their sequence numbers.
    ("grpc.enable_retries", 0),
    # Responses are read in the calling thread, without a hand-over from another.
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
    # Connections of one process to one server are not shared, so that closing one leaves the others
    # alone.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    # Two servers on one port would share its connections silently.
    ("grpc.so_reuseport", 0),
]


def _patient(options: list[tuple[str, int]]) -> list[tuple[str, int]]:
    changed = dict(options) | {"grpc.keepalive_timeout_ms": _PATIENT_TIMEOUT_MS}
    return list(changed.items())


# For peers that watch each other's leases themselves: a process that is stopped for a while and
# goes on keeps its connections.
PATIENT_CHANNEL_OPTIONS = _patient(CHANNEL_OPTIONS)
PATIENT_SERVER_OPTIONS = _patient(SERVER_OPTIONS)


@dataclass(frozen=True)
class Deadlines:
    """How long remote calls may take, in seconds.

    Attributes:
        call: One attempt of a call without much data.
        connect: Reaching a server for the first time, or again after it went away; also how long a
            request is repeated before its error is raised.
        slowest_bytes_per_second: Rate below which a transfer counts as stuck; data extends a call's
            time by its size over this.
    """

    call: float = 30.0
    connect: float = 60.0
    slowest_bytes_per_second: float = 1e6

    def attempt(self, nbytes: int = 0, wait: float = 0.0) -> float:
        """Return deadline of one attempt of a call in seconds.

        Args:
            nbytes: Tensor bytes that travel, both directions together.
            wait: Time that the server was asked to wait at most, in seconds.
        """
        return self.call + wait + nbytes / self.slowest_bytes_per_second


def open_channel(
    address: str, options: Sequence[tuple[str, int]] = CHANNEL_OPTIONS
) -> grpc.Channel:
    """Return a channel to "host:port" with the options that the servers expect."""
    return grpc.insecure_channel(address, options=options)
