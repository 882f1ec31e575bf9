"""The bytes of a socket as frames: as they are, or encrypted by TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

from stratagem_rpc.sockets.frames import FrameReader, SocketFrame

Piece: TypeAlias = bytes | memoryview

# So much is encrypted, or received, at once: it fits the caches of a processor, and the other end
# decrypts it while the next part is encrypted.
SEALED_BYTES = 128 << 10

# AES-GCM is safe for more than twice as much under one key (RFC 8446, section 5.5), and Python
# cannot ask for another one.
_MOST_BYTES = 128 << 30


class Stream(Protocol):
    """What passes over a socket.

    Attributes:
        is_worn: Whether another connection should take the place of this one.
    """

    @property
    def is_worn(self) -> bool: ...

    def sealed(self, piece: Piece) -> Iterable[Piece]:
        """Return what to send, in order, for a piece of a frame; all of it has to be sent."""

    def frames(self, reader: FrameReader) -> list[SocketFrame]:
        """Receive once, and return the frames that are complete.

        Raises:
            OSError: The connection broke or is closed, or nothing is there in time.
            MalformedStreamError: The other end violates the protocol.
        """

    def opened(self, reader: FrameReader) -> list[SocketFrame]:
        """Return the frames that are complete by what was received before; raise likewise."""


class PlainStream:
    """Bytes as they are."""

    is_worn = False

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def sealed(self, piece: Piece) -> Iterable[Piece]:
        """Return the piece."""
        return (piece,)

    def frames(self, reader: FrameReader) -> list[SocketFrame]:
        """Receive once; see `Stream`."""
        nbytes = self._socket.recv_into(reader.room)
        return reader.received(nbytes or require_some(nbytes))

    def opened(self, reader: FrameReader) -> list[SocketFrame]:
        """Return nothing, as the reader has all that was received."""
        return []


class EncryptedStream:
    """Bytes that are encrypted by TLS.

    One thread at a time may send and another one receive. OpenSSL has only memory to read and
    write, so that neither waits for the other.

    Args:
        sock: The socket.
        context: The TLS of this end.
        room: Memory for what is received. Several streams may share it, since it is not used after
            `frames`.
        name: The DNS name that the certificate of the server has to have; None at a server.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        room: bytearray,
        name: str | None = None,
    ) -> None:
        self._socket, self._room = sock, memoryview(room)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=name is None, server_hostname=name
        )
        self._using = threading.Lock()
        self._nbytes = 0

    @property
    def is_worn(self) -> bool:
        """Whether the key has encrypted as much as it should."""
        return self._nbytes > _MOST_BYTES

    @property
    def shown(self) -> bytes:
        """The certificate that the other end has shown, in PEM."""
        found = self._tls.getpeercert(binary_form=True)
        assert found is not None, "the handshake is not over"
        return ssl.DER_cert_to_PEM_cert(found).encode()

    def step(self, received: Piece = b"") -> tuple[bool, bytes]:
        """Take the handshake on by what was received.

        Returns:
            Whether it is over, and what is to be sent.

        Raises:
            OSError: The other end does not speak TLS, or shows what this one does not accept.
        """
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def sealed(self, piece: Piece) -> Iterator[bytes]:
        """Encrypt a piece; see `Stream`."""
        rest = memoryview(piece)
        while rest:
            with self._using:
                written = self._tls.write(rest[:SEALED_BYTES])
                sealed = self._outgoing.read()
            self._nbytes += written
            rest = rest[written:]
            yield sealed

    def frames(self, reader: FrameReader) -> list[SocketFrame]:
        """Receive once; see `Stream`."""
        nbytes = require_some(self._socket.recv_into(self._room))
        self._nbytes += nbytes
        self._incoming.write(self._room[:nbytes])
        return self.opened(reader)

    def opened(self, reader: FrameReader) -> list[SocketFrame]:
        """Return what was received before; see `Stream`."""
        frames: list[SocketFrame] = []
        while nbytes := self._decrypted(reader.room):
            frames += reader.received(nbytes)
        return frames

    def _decrypted(self, room: memoryview) -> int:
        """Decrypt into memory as far as it goes; return how many bytes."""
        filled, tls, incoming = 0, self._tls, self._incoming
        with self._using:
            try:
                while filled < len(room) and (incoming.pending or tls.pending()):
                    rest = room[filled:]
                    # The stubs do not know that it counts what it has put into a buffer.
                    filled += tls.read(len(rest), rest)  # type: ignore[operator]
            except ssl.SSLWantReadError:
                return filled
        return filled


def require_some(nbytes: int) -> int:
    """Return how many bytes were received.

    Raises:
        ConnectionResetError: There are none, since the other end has closed the connection.
    """
    if not nbytes:
        raise ConnectionResetError("the other end closed the connection")
    return nbytes
