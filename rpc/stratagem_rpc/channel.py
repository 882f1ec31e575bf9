"""Channels of gRPC: how to open one, their options and deadlines, and what may take their place."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import grpc
import grpc.experimental

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import MAX_CHUNK_BYTES, MAX_HEADER_BYTES, PING_SECONDS
from stratagem_rpc.certificates.identity import server_name
from stratagem_rpc.certificates.presented import presented

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder


TRANSPORT_VARIABLE = "STRATAGEM_TRANSPORT"

AUTO = "auto"
UNIX = "unix"
TCP = "tcp"
GRPC = "grpc"


_MEANINGS = {
    AUTO: "the best that both ends have",
    UNIX: "Unix sockets without shared memory",
    TCP: "TCP sockets",
    GRPC: "gRPC alone",
}
TRANSPORTS = tuple(_MEANINGS)
"""What the setting may be."""


def check_transport(transport: str) -> None:
    """Check that a transport is "auto", "unix", "tcp" or "grpc".

    Raises:
        InvalidArgumentError: It is not.
    """
    if transport not in _MEANINGS:
        known = ", ".join(f"{name!r} for {what}" for name, what in _MEANINGS.items())
        raise InvalidArgumentError(f"{transport!r} is not a transport; give {known}")


def transport_from_environment() -> str:
    """Return the transport that `STRATAGEM_TRANSPORT` names, by default "auto".

    Raises:
        InvalidArgumentError: The variable does not name a transport.
    """
    transport = os.environ.get(TRANSPORT_VARIABLE, AUTO)
    check_transport(transport)
    return transport


Options: TypeAlias = Sequence[tuple[str, int | str]]
"""Options of gRPC, by their names."""

_KEEPALIVE_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = int(PING_SECONDS * 1000)
_PATIENT_TIMEOUT_MS = 60_000

STALL_SECONDS = (_KEEPALIVE_MS + _KEEPALIVE_TIMEOUT_MS) / 1000
"""Keepalive closes the connection of a peer that is silent for this time."""

PATIENT_SECONDS = (_KEEPALIVE_MS + _PATIENT_TIMEOUT_MS) / 1000
"""The same for connections whose two ends have leases of each other."""

MESSAGE_BYTES = MAX_HEADER_BYTES + MAX_CHUNK_BYTES

# Messages are limited, because any process that connects can make the server take their memory.
_MESSAGE_OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
]

# Without keepalive, each call over a cut network would last until its deadline. Both sides must set
# it: by default a server closes a connection that pings this often.
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # With the defaults, a client would take seconds to notice that a server is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # The project repeats requests itself, under their sequence numbers.
    ("grpc.enable_retries", 0),
    # Responses are read in the calling thread, and not handed over by another one.
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
    # A proxy for the web does not lead to the cluster, and would see all that is sent.
    ("grpc.enable_http_proxy", 0),
    # Channels of one process to one server have connections of their own, so that closing one does
    # not close the others.
    ("grpc.use_local_subchannel_pool", 1),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    *_MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    # Whoever connects and says nothing is gone by then.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Strangers may greet and then ask for nothing. Sessions always have a call under way.
    ("grpc.max_connection_idle_ms", 30_000),
    # A client has at most so many requests that wait on a server.
    ("grpc.max_concurrent_streams", 2_048),
    # Otherwise two servers could listen on one port and share its connections without notice.
    ("grpc.so_reuseport", 0),
]


def _patient(options: list[tuple[str, int]]) -> list[tuple[str, int]]:
    changed = dict(options) | {"grpc.keepalive_timeout_ms": _PATIENT_TIMEOUT_MS}
    return list(changed.items())


# For peers that have leases of each other: a process that is suspended for a while keeps its
# connections.
PATIENT_CHANNEL_OPTIONS = _patient(CHANNEL_OPTIONS)
PATIENT_SERVER_OPTIONS = _patient(SERVER_OPTIONS)


# The longest time for an attempt to connect.
_ATTEMPT = "grpc.min_reconnect_backoff_ms"

# A handshake takes a busy machine more than the tenth of a second after which sessions look whether
# the server is elsewhere.
_ENCRYPTED_ATTEMPT_MS = 1_000

# For single questions, which nobody asks again: they fail with the first attempt, so that this must
# not end before their deadlines. On a busy machine a server takes a second to greet a connection.
ASKING_CHANNEL_OPTIONS = [*(dict(CHANNEL_OPTIONS) | {_ATTEMPT: 20_000}).items()]


@dataclass(frozen=True)
class Deadlines:
    """The deadlines of remote calls, in seconds.

    Attributes:
        call: The time for one attempt of a call without much data.
        connect: The time for reaching a server, at first or after it went away; a request is
            repeated for this time before its error is raised.
        slowest_bytes_per_second: The rate below which a transfer counts as stuck. Data extend the
            deadline of a call by their size divided by this.
    """

    call: float = 30.0
    connect: float = 60.0
    slowest_bytes_per_second: float = 1e6

    def attempt(self, nbytes: int = 0, wait: float = 0.0) -> float:
        """Return the deadline of one attempt of a call in seconds.

        Args:
            nbytes: Bytes of tensors in both directions together.
            wait: The longest time that the server is asked to wait, in seconds.
        """
        return self.call + wait + nbytes / self.slowest_bytes_per_second


class Expected(NamedTuple):
    """Which servers a client means; with certificates, no other can answer in their place.

    Attributes:
        job: Their job; "" for any server of the cluster.
        task: The index within the job; None for any of the job.
    """

    job: str = ""
    task: int | None = None


ANY_SERVER = Expected()

ANY_PARAMETER_SERVER = Expected("ps")


def open_channel(
    address: str,
    options: Options = ASKING_CHANNEL_OPTIONS,
    expected: Expected = ANY_SERVER,
) -> grpc.Channel:
    """Return a channel to "host:port" with the options that the servers expect.

    It shows what this process shows. If that is nothing, nothing is encrypted.

    Args:
        address: Where the server is.
        options: The options of gRPC; by default those for single questions.
        expected: Who has to be there.
    """
    shown = presented()
    if shown is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(
        address, shown.client_credentials(), _meant(options, expected, shown)
    )


def open_aio_channel(
    address: str,
    options: Options,
    expected: Expected,
    certificates: CertificateFolder | None,
) -> grpc.aio.Channel:
    """Return a channel of a server to another one.

    Args:
        address: Where that is.
        options: The options of gRPC.
        expected: Who has to be there.
        certificates: What the server shows; None if nothing is encrypted.
    """
    if certificates is None:
        return grpc.aio.insecure_channel(address, options=options)
    meant = _meant(options, expected, certificates)
    return grpc.aio.secure_channel(address, certificates.client_credentials(), meant)


def _meant(options: Options, expected: Expected, shown: CertificateFolder) -> Options:
    cluster = shown.current().identity.cluster
    changed: dict[str, int | str] = dict(options)
    changed[_ATTEMPT] = max(int(changed[_ATTEMPT]), _ENCRYPTED_ATTEMPT_MS)
    changed["grpc.ssl_target_name_override"] = server_name(cluster, *expected)
    return [*changed.items()]


# Calls on the channel of former certificates have ended by then.
_RETIREMENT_SECONDS = 600.0


class LastingChannel:
    """Channels to one server, each with the certificates of its time. Thread-safe.

    A channel of gRPC keeps its certificate for all handshakes to come, after it has expired, too.
    """

    def __init__(self, address: str, expected: Expected = ANY_SERVER) -> None:
        """Open nothing yet.

        Args:
            address: The "host:port" of the server.
            expected: Who has to be there.
        """
        self._address, self._expected = address, expected
        self._channel: grpc.Channel | None = None
        self._shown: object = None
        self._retired: list[tuple[float, grpc.Channel]] = []
        self._closed = False
        self._changing = threading.Lock()

    def get(self) -> grpc.Channel:
        """Return the channel for calls that begin now.

        Raises:
            ValueError: It is closed.
        """
        channel = self._channel
        if channel is not None and (self._shown is None or self._shown is _certificates()):
            return channel
        return self._renewed()

    def _renewed(self) -> grpc.Channel:
        with self._changing:
            if self._closed:
                raise ValueError("the channel is closed")
            certificates = _certificates()
            if self._channel is None or self._shown is not certificates:
                self._retire(time.monotonic())
                self._shown = certificates
                self._channel = open_channel(self._address, CHANNEL_OPTIONS, self._expected)
            return self._channel

    def _retire(self, now: float) -> None:
        """Keep the channel for the calls on it; close those whose calls have ended long ago."""
        if self._channel is not None:
            self._retired.append((now, self._channel))
        while self._retired and self._retired[0][0] < now - _RETIREMENT_SECONDS:
            self._retired.pop(0)[1].close()

    def close(self) -> None:
        """End all calls; none can be begun any more."""
        with self._changing:
            self._closed = True
            for _, channel in self._retired:
                channel.close()
            if self._channel is not None:
                self._channel.close()


def _certificates() -> object:
    folder = presented()
    return folder.current() if folder is not None else None
