"""A client's connection by one socket."""

from __future__ import annotations

import hmac
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from stratagem_proto.proofs import NONCE_BYTES, drawn_nonce
from stratagem_proto.sockets.client.endpoints import Endpoint
from stratagem_proto.sockets.closing import closed_on_failure, hang_up
from stratagem_proto.sockets.frames import (
    SCRATCH_BYTES,
    FrameKind,
    FrameReader,
    SocketFrame,
    parts,
    prefix,
)
from stratagem_proto.sockets.greeting import HELLO_BYTES, Proofs
from stratagem_proto.sockets.streams import Piece, PlainStream, Stream
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment, create

# A timeout that is longer by this factor is not set again, since that takes a system call.
_LENIENCE = 1.01


def _unattended(link: SocketLink) -> None:
    """Do nothing: nobody ends the greeting of this link."""


class SocketLink:
    """A socket whose other end has proved that it is the server.

    Attributes:
        segment: The memory that both ends share; None if there is none.

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
        self._stream: Stream = PlainStream(self._socket)
        with closed_on_failure(self._socket):
            greets(self)
            self._stream = endpoint.stream(self._socket, deadline)
            self._greet(endpoint, deadline)

    def _greet(self, endpoint: Endpoint, deadline: float) -> None:
        asked = drawn_nonce()
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
        self.send_all(parts(kind, message, is_last, path))

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
        return chain.from_iterable(map(self._stream.sealed, pieces))

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
    def is_worn(self) -> bool:
        """Whether calls to come should go by another connection, as this one shows what was."""
        return self._stream.is_worn

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
            self._receive()
        return self._arrived.popleft()

    def _receive(self) -> None:
        self._arrived.extend(self._stream.frames(self._reader))

    def close(self) -> None:
        """Close the socket; threads that wait for it fail. It may be called again."""
        hang_up(self._socket)
