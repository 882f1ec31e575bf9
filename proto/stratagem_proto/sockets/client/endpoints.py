"""The endpoints of a server's sockets, to which its clients connect."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from stratagem_proto.certificates.presented import presented
from stratagem_proto.sockets.client.encryption import CertifiedStream
from stratagem_proto.sockets.closing import closed_on_failure, tune
from stratagem_proto.sockets.greeting import SECRET_BYTES
from stratagem_proto.sockets.streams import PlainStream, Stream
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.channel import ANY_SERVER, STALL_SECONDS, Expected
from stratagem_proto.wire.transport import AUTO, TCP, UNIX

if TYPE_CHECKING:
    from stratagem_proto.certificates.folder import CertificateFolder


class Endpoint(Protocol):
    """The endpoint of one of a server's sockets.

    Attributes:
        way: The transport, as the setting names it.
        can_share: Whether both ends can share memory.
        seconds: The most seconds for connecting and the greeting.
        secret: The secret of the session, which the server must prove to know.
        session_id: The session.
    """

    way: ClassVar[str]
    can_share: ClassVar[bool]
    seconds: ClassVar[float]

    @property
    def secret(self) -> bytes: ...

    @property
    def session_id(self) -> bytes: ...

    def connect(self, seconds: float) -> socket.socket:
        """Return a connected socket, whose greeting is to follow.

        Raises:
            OSError: Nobody answers, or it takes longer than so many seconds.
        """

    def stream(self, connected: socket.socket, deadline: float) -> Stream:
        """Return what is to pass over a connected socket, after a handshake where it is encrypted.

        Args:
            connected: The socket.
            deadline: When the handshake has to be over, in seconds of `time.monotonic`.

        Raises:
            OSError: Somebody else answers, or it takes too long.
        """


@dataclass(frozen=True)
class UnixEndpoint:
    """A Unix socket of this host, by its abstract name."""

    way: ClassVar[str] = UNIX
    can_share: ClassVar[bool] = True
    seconds: ClassVar[float] = 5.0

    name: bytes
    session_id: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    def connect(self, seconds: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_failure(connection):
            connection.settimeout(seconds)
            connection.connect(b"\0" + self.name)
        return connection

    def stream(self, connected: socket.socket, deadline: float) -> Stream:
        return PlainStream(connected)


@dataclass(frozen=True)
class TcpEndpoint:
    """The data port of the server's host, which is encrypted if this process has certificates."""

    way: ClassVar[str] = TCP
    can_share: ClassVar[bool] = False
    # A network that drops packets to other ports delays a session by this time, once.
    seconds: ClassVar[float] = 2.0

    host: str
    port: int
    session_id: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    stall_seconds: float
    certificates: CertificateFolder | None = None
    expected: Expected = ANY_SERVER

    def connect(self, seconds: float) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), seconds)
        with closed_on_failure(connection):
            tune(connection, self.stall_seconds)
        return connection

    def stream(self, connected: socket.socket, deadline: float) -> Stream:
        if self.certificates is None:
            return PlainStream(connected)
        return CertifiedStream(connected, self.certificates, self.expected, deadline)


def endpoints(
    told: FrameSockets,
    address: str,
    setting: str,
    stall_seconds: float = STALL_SECONDS,
    expected: Expected = ANY_SERVER,
) -> Iterator[Endpoint]:
    """Yield the endpoints to try, the fastest first.

    Args:
        told: The server's description of its sockets.
        address: The "host:port" by which it was called. If the port is not the server's own, the
            call went through a proxy, and no endpoint is yielded.
        setting: The transport that this process may use.
        stall_seconds: The most seconds in which another host acknowledges nothing.
        expected: Who has to be there, if this process has certificates.
    """
    host, _, port = address.rpartition(":")
    # With a shorter secret, or none, a proof would prove nothing.
    if port != str(told.port) or len(told.secret) < SECRET_BYTES:
        return
    if told.name and setting in (AUTO, UNIX):
        yield UnixEndpoint(told.name, told.session_id, told.secret)
    if told.data_port and setting in (AUTO, TCP):
        known = told.session_id, told.secret
        where = host.strip("[]"), told.data_port
        yield TcpEndpoint(*where, *known, stall_seconds, presented(), expected)
