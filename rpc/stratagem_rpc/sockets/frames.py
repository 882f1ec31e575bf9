"""The frames in which calls of the contract's methods cross a socket."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.proofs import NONCE_BYTES, new_nonce
from stratagem_proto.protocol import MAX_CHUNK_BYTES, SESSION_ID_BYTES
from stratagem_rpc.channel import MESSAGE_BYTES

# The messages are byte for byte those that gRPC would carry. The client sends a CALL with the
# first message of a call, and a MESSAGE for each further one. The server answers with MESSAGEs, or
# ends the call with a STATUS. The last frame of either side is marked. A server answers one call
# of a socket at a time; calls of a single frame may be pipelined, and are answered in order.

# Size of the message, size of the path, kind.
_HEADER = Struct("<IHBx")
_LAST = 0x80

# The size of the buffer into which small frames are read, several at a time.
SCRATCH_BYTES = 64 << 10

# Smaller messages are copied behind their prefixes, because sending one part is faster than two.
_SMALL_BYTES = 64 << 10

# A frame with more than chunks of tensors gets that much memory at first, and four times as much
# whenever it is full.
_FIRST_BYTES = MAX_CHUNK_BYTES + SCRATCH_BYTES
_GROWTH = 4

# So much of a frame that has come in part takes no memory of its own.
_REST_BYTES = 4 << 10

LARGEST_FRAME_BYTES = MESSAGE_BYTES + (1 << 16) + _HEADER.size

# The most bytes of a connection that wait on the server, in either direction.
WINDOW_BYTES = 4 << 20


class FrameKind(IntEnum):
    """The kind of a frame.

    Attributes:
        HELLO: The first frames of either side, which prove that the sender knows the secret.
        CALL: Begins a call of the method whose path comes before the message.
        MESSAGE: One message of a call.
        STATUS: A RecordedStatus, which ends a failed call or answers a SEGMENT.
        SEGMENT: Sent between calls, with the descriptor of shared memory in which the messages of
            further calls may name places. It replaces the memory before it.
    """

    HELLO = 1
    CALL = 2
    MESSAGE = 3
    STATUS = 4
    SEGMENT = 5


class SocketFrame(NamedTuple):
    """One frame.

    Attributes:
        kind: A `FrameKind`, as a number.
        is_last: Whether this is the sender's last frame of the call.
        message: Its bytes; for a large message, a view of memory that belongs to it.
        path: The path of the method, as gRPC names it; empty except for a CALL.
        taken: The bytes that its reader took for it, which are to be given back.
    """

    kind: int
    is_last: bool
    message: bytes | memoryview
    path: bytes = b""
    taken: int = 0


def prefix(kind: FrameKind, size: int, is_last: bool, path: bytes = b"") -> bytes:
    """Return the part of a frame before its message, which has so many bytes."""
    marked = kind | _LAST if is_last else kind
    return _HEADER.pack(size, len(path), marked) + path


def parts(kind: FrameKind, message: bytes, is_last: bool, path: bytes = b"") -> tuple[bytes, ...]:
    """Return a frame in the parts in which it is sent fastest."""
    marked = kind | _LAST if is_last else kind
    begin = _HEADER.pack(len(message), len(path), marked) + path
    return (begin + message,) if len(message) <= _SMALL_BYTES else (begin, message)


def _unlimited(nbytes: int) -> bool:
    return True


class FrameReader:
    """Parses the bytes of a socket into frames.

    Read from the socket into `room`, and pass the number of bytes to `received`. Memory for a large
    frame is taken as its bytes come. While `lacks_memory` there is no room; call `proceed` when
    there may be some.

    Args:
        scratch: The buffer for small frames. Several readers may share it, since it is not used
            after `received`.
        limit: The most bytes of a message, and of a path.
        take: Takes so many bytes for frames; returns False if there are too few now.

    Attributes:
        lacks_memory: Whether a frame has come in part, and there is no memory for more of it.
        completed: How many frames were complete so far.
    """

    def __init__(
        self,
        scratch: bytearray,
        limit: int = MESSAGE_BYTES,
        take: Callable[[int], bool] = _unlimited,
    ) -> None:
        self.lacks_memory, self.completed = False, 0
        self._limit, self._take = limit, take
        self._scratch = memoryview(scratch)
        self._rest = b""
        # The frame that has come in part: its memory so far, how much of that is filled, how large
        # the frame is, and how many bytes were taken for it.
        self._large: memoryview | None = None
        self._filled = self._size = self._taken = 0

    def admit(self) -> None:
        """Raise the limit to that of messages over gRPC."""
        self._limit = MESSAGE_BYTES

    @property
    def room(self) -> memoryview:
        """The memory for the next bytes."""
        return self._scratch if self._large is None else self._large[self._filled :]

    @property
    def is_within(self) -> bool:
        """Whether a large frame is incomplete, and there is room for more of it."""
        return self._large is not None and not self.lacks_memory

    @property
    def is_partial(self) -> bool:
        """Whether a frame has come in part."""
        return self._large is not None or bool(self._rest)

    def received(self, nbytes: int) -> list[SocketFrame]:
        """Return the frames that are complete after so many more bytes were read into `room`.

        Raises:
            MalformedStreamError: A message or a path is too large. No memory was taken for it.
        """
        if self._large is not None:
            return self._more_of_large(self._large, nbytes)
        data = self._rest + self._scratch[:nbytes]
        frames, at = [], 0
        while len(data) - at >= _HEADER.size:
            begin, end, marked = self._bounds(data, at)
            if end > len(data):
                break
            path = data[at + _HEADER.size : begin]
            is_last = marked >= _LAST
            frames.append(SocketFrame(marked & ~_LAST, is_last, data[begin:end], path))
            at = end
        self.completed += len(frames)
        self._rest = data[at:]
        if self._rest:
            self._make_room(self._rest)
        return frames

    def _bounds(self, data: bytes | memoryview, at: int) -> tuple[int, int, int]:
        """Return where the message of a frame begins and ends, and how it is marked."""
        message, path, marked = _HEADER.unpack_from(data, at)
        if message > self._limit or path > self._limit:
            raise MalformedStreamError(
                f"a message of {message} bytes with a path of {path} bytes came over a "
                f"socket; each may have at most {self._limit}"
            )
        begin = at + _HEADER.size + path
        return begin, begin + message, marked

    def _make_room(self, rest: bytes) -> None:
        if len(rest) < _HEADER.size:
            return
        _, size, _ = self._bounds(rest, 0)
        if size > len(self._scratch) or len(rest) > _REST_BYTES:
            self._large, self._rest = memoryview(bytearray(rest)), b""
            self._filled, self._size, self._taken = len(rest), size, 0
            self.proceed()

    def proceed(self) -> None:
        """Take memory for more of the frame that has come in part, if there is any now."""
        assert self._large is not None, "no frame has come in part"
        wanted = min(self._size, max(_FIRST_BYTES, _GROWTH * self._taken))
        self.lacks_memory = not self._take(wanted - self._taken)
        if not self.lacks_memory:
            grown = memoryview(bytearray(wanted))
            grown[: self._filled] = self._large
            self._large, self._taken = grown, wanted

    def drop(self) -> int:
        """Drop the frame that has come in part, and return how many bytes were taken for it."""
        taken = 0 if self._large is None else self._taken
        self._large, self._rest = None, b""
        return taken

    def _more_of_large(self, large: memoryview, nbytes: int) -> list[SocketFrame]:
        self._filled += nbytes
        if self._filled < len(large):
            return []
        if self._filled < self._size:
            self.proceed()
            return []
        self._large = None
        self.completed += 1
        begin, end, marked = self._bounds(large, 0)
        path = bytes(large[_HEADER.size : begin])
        is_last = marked >= _LAST
        return [SocketFrame(marked & ~_LAST, is_last, large[begin:end], path, self._taken)]


# The client sends the session and a nonce. The server answers with a nonce of its own and its
# proof. The client checks the proof and answers with its own. A process that has taken over the
# port or the name of a server that is gone learns neither the secret nor a proof that is valid for
# another connection. The server keeps no secrets: it makes that of a session anew from one of its
# own.

SECRET_BYTES = 32
PROOF_BYTES = 32

# The longest message of a HELLO.
HELLO_BYTES = NONCE_BYTES + PROOF_BYTES

_ASKING_BYTES = SESSION_ID_BYTES + NONCE_BYTES


def secret_of(session_id: bytes, run_secret: bytes, owner: bytes = b"") -> bytes:
    """Return the secret of a session with the run of a server that has drawn another one.

    Args:
        session_id: The session, whose id has one length.
        run_secret: What the run has drawn.
        owner: Who the certificate of its client names; empty without certificates.
    """
    return hmac.digest(run_secret, b"session" + session_id + owner, "sha256")


class Proofs:
    """The proofs of the two ends of one connection, which only those that know the secret can make.

    Args:
        secret: The secret of the session.
        asked: The client's nonce.
        answered: The server's nonce.

    Attributes:
        of_server: The server's proof.
        of_client: The client's proof. It differs from the server's, so that an attacker cannot
            send either end's own proof back to it.
    """

    def __init__(self, secret: bytes, asked: bytes, answered: bytes) -> None:
        nonces = asked + answered
        self.of_server = hmac.digest(secret, b"server" + nonces, "sha256")
        self.of_client = hmac.digest(secret, b"client" + nonces, "sha256")


class Greeting:
    """The server's side of the greeting, without a socket and without a clock.

    Args:
        secret: Returns the secret of a session, by its id; raises if there is none.

    Attributes:
        is_over: Whether the client has proved that it knows the secret of the session.
        session_id: The session that the client has named; empty before it has.
    """

    def __init__(self, secret: Callable[[bytes], bytes]) -> None:
        self.is_over, self.session_id = False, b""
        self._secret = secret
        self._proofs: Proofs | None = None

    def answer(self, frame: SocketFrame) -> bytes:
        """Return the answer to a HELLO.

        Raises:
            MalformedStreamError: It is not a HELLO, its proof is wrong, or there is no secret.
        """
        if frame.kind != FrameKind.HELLO:
            raise MalformedStreamError("a call came before the caller had proved itself")
        if self._proofs is None:
            return self._challenge(bytes(frame.message))
        if not hmac.compare_digest(frame.message, self._proofs.of_client):
            raise MalformedStreamError("its secret is not that of the session which it names")
        self.is_over = True
        return b""

    def _challenge(self, asking: bytes) -> bytes:
        if len(asking) != _ASKING_BYTES:
            raise MalformedStreamError(f"a session and a nonce have {len(asking)} bytes")
        self.session_id, asked = asking[:SESSION_ID_BYTES], asking[SESSION_ID_BYTES:]
        answered = new_nonce()
        self._proofs = Proofs(self._secret(self.session_id), asked, answered)
        return answered + self._proofs.of_server
