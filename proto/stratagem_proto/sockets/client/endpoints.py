"""Where a server takes frames, as its client sees it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from stratagem_proto.sockets.closing import closed_on_failure, tune
from stratagem_proto.sockets.greeting import SECRET_BYTES
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.channel import STALL_SECONDS
from stratagem_proto.wire.transport import AUTO, TCP, UNIX


class Endpoint(Protocol):
    """Where to connect.

    Attributes:
        way: The transport, as the setting names it.
        can_share: Whether both ends can see the same memory.
        seconds: How long a connection may take until both ends are sure of each other.
        secret: That the server proves to know.
    """

    way: ClassVar[str]
    can_share: ClassVar[bool]
    seconds: ClassVar[float]

    @property
    def secret(self) -> bytes: ...

    def connect(self, seconds: float) -> socket.socket:
        """Return a socket whose other end is yet to prove who it is.

        Raises:
            OSError: Nobody answers there, or it takes longer than that.
        """


@dataclass(frozen=True)
class UnixEndpoint:
    """A name on this host."""

    way: ClassVar[str] = UNIX
    can_share: ClassVar[bool] = True
    seconds: ClassVar[float] = 5.0

    name: bytes
    secret: bytes = field(repr=False)

    def connect(self, seconds: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with closed_on_failure(connection):
            connection.settimeout(seconds)
            connection.connect(b"\0" + self.name)
        return connection


@dataclass(frozen=True)
class TcpEndpoint:
    """A port of the server's host."""

    way: ClassVar[str] = TCP
    can_share: ClassVar[bool] = False
    # A network that drops what is sent to other ports delays a session by that, once.
    seconds: ClassVar[float] = 2.0

    host: str
    port: int
    secret: bytes = field(repr=False)
    stall_seconds: float

    def connect(self, seconds: float) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), seconds)
        with closed_on_failure(connection):
            tune(connection, self.stall_seconds)
        return connection


def endpoints(
    told: FrameSockets, address: str, setting: str, stall_seconds: float = STALL_SECONDS
) -> Iterator[Endpoint]:
    """Yield where to try to connect, the best one first.

    Args:
        told: What the server says of its sockets.
        address: The "host:port" by which it was called. At another port than its own there is a
            proxy, which is not to be passed by.
        setting: The transport that this process may use.
        stall_seconds: For how long the server's host may take nothing, where it is another one.
    """
    host, _, port = address.rpartition(":")
    # Anybody could prove to know a secret that is none.
    if port != str(told.port) or len(told.secret) < SECRET_BYTES:
        return
    if told.name and setting in (AUTO, UNIX):
        yield UnixEndpoint(told.name, told.secret)
    if told.data_port and setting in (AUTO, TCP):
        yield TcpEndpoint(host.strip("[]"), told.data_port, told.secret, stall_seconds)
