"""The client's end of a socket: where it leads, its encryption, and its messages."""

from __future__ import annotations

import hmac
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Protocol

import grpc

from stratagem_proto.proofs import NONCE_BYTES, new_nonce
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_proto.wire.segment import Segment, create
from stratagem_proto.wire.status import CallError
from stratagem_rpc.certificates.identity import server_name
from stratagem_rpc.certificates.presented import presented
from stratagem_rpc.channel import ANY_SERVER, AUTO, STALL_SECONDS, TCP, UNIX, Expected
from stratagem_rpc.sockets.closing import closed_on_failure, hang_up, tune
from stratagem_rpc.sockets.frames import (
    HELLO_BYTES,
    SCRATCH_BYTES,
    SECRET_BYTES,
    FrameKind,
    FrameReader,
    Proofs,
    SocketFrame,
    parts,
    prefix,
)
from stratagem_rpc.sockets.streams import (
    SEALED_BYTES,
    EncryptedStream,
    Piece,
    PlainStream,
    Stream,
    require_some,
)

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import CertificateFolder


def broken(error: Exception) -> CallError:
    """Return the error of a call whose connection broke or whose time is over."""
    code = grpc.StatusCode.UNAVAILABLE
    # A TimeoutError with a number comes from the system and says that the host is gone.
    if isinstance(error, TimeoutError) and error.errno is None:
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    status = RecordedStatus(code=code.value[0], message=f"socket: {error}")
    return CallError(status)


def require_ok(end: SocketFrame) -> None:
    """Check the status that ends a call.

    Raises:
        CallError: The call failed.
    """
    status = RecordedStatus.FromString(bytes(end.message))
    if status.code:
        raise CallError(status)


# Nobody shows more at once.
_FLIGHT_BYTES = 16 << 10

# A connection that exists looks for another certificate of its process no more often, since that
# takes as long as it does to encrypt a small request.
_LOOK_SECONDS = 0.1


class CertifiedStream(EncryptedStream):
    """An encrypted stream to a server that has shown the certificate of the task that is meant.

    Args:
        sock: A connected socket.
        certificates: What this process shows, and whom it trusts.
        expected: Who has to be there.
        deadline: When the handshake has to be over, in seconds of `time.monotonic`.

    Raises:
        OSError: Somebody else is there, does not accept what this process shows, or takes too long.
    """

    def __init__(
        self,
        sock: socket.socket,
        certificates: CertificateFolder,
        expected: Expected,
        deadline: float,
    ) -> None:
        from stratagem_rpc.certificates.folder import client_context

        self._certificates, self._own = certificates, certificates.current()
        self._looked, self._is_former = time.monotonic(), False
        name = server_name(self._own.identity.cluster, *expected)
        super().__init__(sock, client_context(self._own), bytearray(SEALED_BYTES), name)
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float) -> None:
        received = b""
        while True:
            over, sealed = self.step(received)
            # Before each system call, so that a handshake that comes byte by byte can be late, too.
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(sealed)
            if over:
                return
            received = self._socket.recv(_FLIGHT_BYTES)
            require_some(len(received))

    @property
    def is_worn(self) -> bool:
        """Whether this process shows another certificate by now, or the key was used for long."""
        if (now := time.monotonic()) >= self._looked + _LOOK_SECONDS:
            self._looked = now
            self._is_former = self._certificates.current() is not self._own
        return self._is_former or super().is_worn


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for the handshake is over")
    return left


# A timeout that is longer by this factor is not set again, since that takes a system call.
_LENIENCE = 1.01


def _unattended(link: SocketLink) -> None:
    """Do nothing: nobody ends the greeting of this link."""


class SocketLink:
    """A socket whose other end has proved that it is the server.

    Attributes:
        segment: The memory that both ends share; None if there is none.
        stream: What passes over the socket. Once it is worn, calls to come should go by another
            connection.

    Raises:
        OSError: Nobody or another program answers, or it takes too long.
        MalformedStreamError: The other end violates the protocol.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        seconds: float | None = None,
        greets: Callable[[SocketLink], None] = _unattended,
    ) -> None:
        """Connect.

        Args:
            endpoint: The endpoint.
            seconds: The most time for it; at most and by default the endpoint's own.
            greets: Called before the other end has answered, for which this waits; whoever closes
                the link in another thread ends that.
        """
        self.segment: Segment | None = None
        # Before its proof the other end cannot send a larger message.
        self._reader = FrameReader(bytearray(SCRATCH_BYTES), HELLO_BYTES)
        self._arrived: deque[SocketFrame] = deque()
        seconds = min(seconds or endpoint.seconds, endpoint.seconds)
        deadline = time.monotonic() + seconds
        self._socket = endpoint.connect(seconds)
        self.stream: Stream = PlainStream(self._socket)
        with closed_on_failure(self._socket):
            greets(self)
            self.stream = endpoint.stream(self._socket, deadline)
            self._greet(endpoint, deadline)

    def _greet(self, endpoint: Endpoint, deadline: float) -> None:
        asked = new_nonce()
        answer = self._answer(endpoint.session_id + asked, deadline)
        answered, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        proofs = Proofs(endpoint.secret, asked, answered)
        if not hmac.compare_digest(proof, proofs.of_server):
            raise ConnectionRefusedError("somebody else answers in place of the server")
        self._answer(proofs.of_client, deadline)
        self._reader.admit()

    def _answer(self, hello: bytes, deadline: float) -> bytes:
        self.allow_until(deadline)
        self.send(FrameKind.HELLO, hello, is_last=True)
        return bytes(self.receive(deadline).message)

    def allow_until(self, deadline: float) -> None:
        """Set the timeout of the next system call to the time that is left.

        Raises:
            TimeoutError: The deadline is over.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for it is over")
        self.allow(left)

    def allow(self, seconds: float | None) -> None:
        """Set the timeout of each system call that sends or receives; None for any time."""
        allowed = self._socket.gettimeout()
        # A timeout that is about the same is kept, which saves a system call.
        if not seconds or not allowed or not seconds <= allowed < seconds * _LENIENCE:
            self._socket.settimeout(seconds)

    def send(self, kind: FrameKind, message: bytes, is_last: bool, path: bytes = b"") -> None:
        """Send a frame.

        Raises:
            OSError: The connection broke, or a system call took too long.
        """
        for piece in parts(kind, message, is_last, path):
            for sealed in self.stream.sealed(piece):
                self._socket.sendall(sealed)

    def send_all(self, pieces: Iterable[bytes]) -> None:
        """Send pieces of frames; it waits and raises like `send`."""
        self.send_rest(self._sealed(pieces))

    def send_rest(self, sealed: Iterable[Piece]) -> None:
        """Send what `send_at_once` has left; it waits and raises like `send`."""
        for piece in sealed:
            self._socket.sendall(piece)

    def send_at_once(self, pieces: Iterable[bytes]) -> Iterator[Piece] | None:
        """Send pieces of frames as far as the socket takes them without waiting.

        Returns:
            What it has no room for, which is for `send_rest`; None if that is nothing.

        Raises:
            OSError: The connection broke.
        """
        sealed, left = self._sealed(pieces), memoryview(b"")
        try:
            for piece in sealed:
                left = memoryview(piece)
                while left:
                    left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return chain((left,), sealed)
        return None

    def _sealed(self, pieces: Iterable[bytes]) -> Iterator[Piece]:
        return chain.from_iterable(map(self.stream.sealed, pieces))

    def share(self, nbytes: int) -> bool:
        """Share memory of so many bytes with the server; it replaces the present segment.

        Returns:
            Whether the memory is shared. If the server refuses it, no memory is shared any more; if
            this host has not enough, the present segment stays.

        Raises:
            OSError: The connection broke, or it took too long.
        """
        try:
            segment, fd = create(nbytes)
        except OSError:
            return False
        self.segment = None
        try:
            frame = prefix(FrameKind.SEGMENT, 0, is_last=True)
            socket.send_fds(self._socket, [frame], [fd])
        finally:
            os.close(fd)
        answer = self.receive()
        if RecordedStatus.FromString(bytes(answer.message)).code:
            return False
        self.segment = segment
        return True

    @property
    def is_answered(self) -> bool:
        """Whether the server has answered or closed the connection."""
        looking = select.poll()
        looking.register(self._socket, select.POLLIN)
        return bool(looking.poll(0))

    def frames(self) -> Iterator[SocketFrame]:
        """Yield the frames of one answer as they arrive.

        Raises:
            OSError: The connection broke, or a frame took too long.
            MalformedStreamError: The server violates the protocol.
        """
        while True:
            frame = self.receive()
            yield frame
            if frame.is_last:
                return

    def receive(self, deadline: float | None = None) -> SocketFrame:
        """Return the next frame; it raises like `frames`.

        Args:
            deadline: When the whole frame must have arrived, in seconds of `time.monotonic`; by
                default the timeout counts for each system call.
        """
        while not self._arrived:
            # Before each system call, so that a frame that arrives byte by byte can be late, too.
            if deadline is not None:
                self.allow_until(deadline)
            self._arrived.extend(self.stream.frames(self._reader))
        return self._arrived.popleft()

    def close(self) -> None:
        """Close the socket; threads that wait for it fail. It may be called again."""
        hang_up(self._socket)


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
