"""The frames in which calls of the contract's methods cross a socket.

The messages are byte for byte those that gRPC would carry. The client sends a CALL with the first
message of a call, and a MESSAGE for each further one. The server answers with MESSAGEs, or ends the
call with a STATUS. The last frame of either side is marked. A server answers one call of a socket
at a time; calls of a single frame may be pipelined, and are answered in order.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.wire.channel import MESSAGE_BYTES

# Size of the message, size of the path, kind.
_HEADER = Struct("<IHBx")
_LAST = 0x80

# The size of the buffer into which small frames are read, several at a time.
SCRATCH_BYTES = 64 << 10

# Smaller messages are copied behind their prefixes, because sending one part is faster than two.
_SMALL_BYTES = 64 << 10

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
    """

    kind: int
    is_last: bool
    message: bytes | memoryview
    path: bytes = b""


def prefix(kind: FrameKind, size: int, is_last: bool, path: bytes = b"") -> bytes:
    """Return the part of a frame before its message, which has so many bytes."""
    marked = kind | _LAST if is_last else kind
    return _HEADER.pack(size, len(path), marked) + path


def parts(kind: FrameKind, message: bytes, is_last: bool, path: bytes = b"") -> tuple[bytes, ...]:
    """Return a frame in the parts in which it is sent fastest."""
    begin = prefix(kind, len(message), is_last, path)
    return (begin + message,) if len(message) <= _SMALL_BYTES else (begin, message)


class FrameReader:
    """Parses the bytes of a socket into frames.

    Read from the socket into `room`, and pass the number of bytes to `received`.

    Args:
        scratch: The buffer for small frames. Several readers may share it, since it is not used
            after `received`.
        limit: The most bytes of a message, and of a path.
    """

    def __init__(self, scratch: bytearray, limit: int = MESSAGE_BYTES) -> None:
        self._limit = limit
        self._scratch = memoryview(scratch)
        self._rest = b""
        self._large: memoryview | None = None
        self._filled = 0

    def admit(self) -> None:
        """Raise the limit to that of messages over gRPC."""
        self._limit = MESSAGE_BYTES

    @property
    def room(self) -> memoryview:
        """The memory for the next bytes."""
        return self._scratch if self._large is None else self._large[self._filled :]

    @property
    def is_within(self) -> bool:
        """Whether a large frame is incomplete."""
        return self._large is not None

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
            frames.append(_frame(marked, data[begin:end], path))
            at = end
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
        if size > len(self._scratch):
            self._large = memoryview(bytearray(size))
            self._large[: len(rest)] = rest
            self._filled, self._rest = len(rest), b""

    def _more_of_large(self, large: memoryview, nbytes: int) -> list[SocketFrame]:
        self._filled += nbytes
        if self._filled < len(large):
            return []
        self._large = None
        begin, end, marked = self._bounds(large, 0)
        return [_frame(marked, large[begin:end], bytes(large[_HEADER.size : begin]))]


def _frame(marked: int, message: bytes | memoryview, path: bytes) -> SocketFrame:
    return SocketFrame(marked & ~_LAST, marked >= _LAST, message, path)
