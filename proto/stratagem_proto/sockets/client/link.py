"""One socket of a client."""

from __future__ import annotations

import hmac
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator

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
from stratagem_proto.sockets.greeting import HELLO_BYTES, NONCE_BYTES, Proofs, drawn_nonce
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment, create

# What a wait may be longer than allowed by, as setting that takes a call of the system.
_LENIENCE = 1.01


class SocketLink:
    """A socket whose other end has proved to be the server.

    Attributes:
        segment: Memory that both ends see; None if there is none.

    Raises:
        OSError: Nobody, or somebody else, answers there, or it takes too long.
        MalformedStreamError: Who answers sends what the server would not.
    """

    def __init__(self, endpoint: Endpoint, seconds: float | None = None) -> None:
        """Connect.

        Args:
            endpoint: Where.
            seconds: How long that may take, if not the endpoint's usual time.
        """
        self.segment: Segment | None = None
        # Nothing larger than a proof is taken from strangers.
        self._reader = FrameReader(bytearray(SCRATCH_BYTES), HELLO_BYTES)
        self._arrived: deque[SocketFrame] = deque()
        seconds = min(seconds or endpoint.seconds, endpoint.seconds)
        deadline = time.monotonic() + seconds
        self._socket = endpoint.connect(seconds)
        with closed_on_failure(self._socket):
            self._greet(endpoint.secret, deadline)

    def _greet(self, secret: bytes, deadline: float) -> None:
        asked = drawn_nonce()
        answer = self._answer(asked, deadline)
        answered, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        proofs = Proofs(secret, asked, answered)
        if not hmac.compare_digest(proof, proofs.of_server):
            raise ConnectionRefusedError("somebody else answers in place of the server")
        self._answer(proofs.of_client, deadline)
        self._reader.admit()

    def _answer(self, hello: bytes, deadline: float) -> bytes:
        self.allow_until(deadline)
        self.send(FrameKind.HELLO, hello, is_last=True)
        return bytes(self.receive(deadline).message)

    def allow_until(self, deadline: float) -> None:
        """Let the next step of sending or receiving take until then at most.

        Raises:
            TimeoutError: It is later.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for it is over")
        self.allow(left)

    def allow(self, seconds: float | None) -> None:
        """Set how long each step of sending and receiving may take; None: any time."""
        allowed = self._socket.gettimeout()
        # Of calls that follow each other closely the same does for each step.
        if not seconds or not allowed or not seconds <= allowed < seconds * _LENIENCE:
            self._socket.settimeout(seconds)

    def send(self, kind: FrameKind, message: bytes, is_last: bool, path: bytes = b"") -> None:
        """Send a frame.

        Raises:
            OSError: The connection broke, or it took too long.
        """
        for piece in parts(kind, message, is_last, path):
            self._socket.sendall(piece)

    def send_all(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Send pieces of frames; raise as `send`, and wait as long."""
        for piece in pieces:
            self._socket.sendall(piece)

    def send_at_once(self, pieces: Iterator[bytes]) -> memoryview:
        """Send pieces of frames as far as there is room, and do not wait for more.

        Returns:
            What is left of the last one that was taken from `pieces`.

        Raises:
            OSError: The connection broke.
        """
        left = memoryview(b"")
        try:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return left
        return left

    def share(self, nbytes: int) -> bool:
        """Share memory of that many bytes with the server, in place of what there was.

        Returns:
            Whether there is so much, and the server takes it. If the server does not, nothing is
            shared any more.

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
        """Whether the server has answered, or is gone."""
        looking = select.poll()
        looking.register(self._socket, select.POLLIN)
        return bool(looking.poll(0))

    def frames(self) -> Iterator[SocketFrame]:
        """Yield the frames of one answer, as they come.

        Raises:
            OSError: The connection broke, or it took too long.
            MalformedStreamError: The server sent what it may not.
        """
        while True:
            frame = self.receive()
            yield frame
            if frame.is_last:
                return

    def receive(self, deadline: float | None = None) -> SocketFrame:
        """Return the next frame; raise as `frames`.

        Args:
            deadline: When all of it must have come, of `time.monotonic`; if not given, what was
                allowed counts for each step.
        """
        while not self._arrived:
            # Again, or a frame that comes by the byte would never be late.
            if deadline is not None:
                self.allow_until(deadline)
            self._receive()
        return self._arrived.popleft()

    def _receive(self) -> None:
        nbytes = self._socket.recv_into(self._reader.room)
        if not nbytes:
            raise ConnectionResetError("the server closed the connection")
        self._arrived.extend(self._reader.received(nbytes))

    def close(self) -> None:
        """Close the socket; who waits at it fails. May be called again."""
        hang_up(self._socket)
