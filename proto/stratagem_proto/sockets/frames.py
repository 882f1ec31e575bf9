"""What crosses a socket: calls of the contract's methods, in frames.

The messages are byte for byte those that gRPC would carry. The client sends a CALL with the first
message, and a MESSAGE for each further one; the server answers by MESSAGEs, or ends the call by a
STATUS. The last frame of either side is marked. A socket answers one call at a time; those of a
single frame may be pipelined, and are answered in order.
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

# What small frames are read into, several at a time.
SCRATCH_BYTES = 64 << 10

# Smaller messages are copied behind their prefixes: sending one part costs less than sending two.
_SMALL_BYTES = 64 << 10

# Where more waits on a server, to be handled or to be read, its client waits too.
WINDOW_BYTES = 4 << 20


class FrameKind(IntEnum):
    """What a frame is.

    Attributes:
        HELLO: The first frame of either side; it proves who sends it.
        CALL: Begins a call of the method whose path comes before the message.
        MESSAGE: One message of a call.
        STATUS: A RecordedStatus, which ends a call that failed, or says what came of a segment.
        SEGMENT: Comes between calls, with the descriptor of memory that calls of this socket may
            name places in; it replaces what came before.
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
        is_last: Whether its sender sends no more in this call.
        message: Its bytes; of a large one a view of memory that is its own.
        path: The method, as gRPC names it; empty but for a CALL.
    """

    kind: int
    is_last: bool
    message: bytes | memoryview
    path: bytes = b""


def prefix(kind: FrameKind, size: int, is_last: bool, path: bytes = b"") -> bytes:
    """Return all of a frame but its message of that many bytes."""
    marked = kind | _LAST if is_last else kind
    return _HEADER.pack(size, len(path), marked) + path


def parts(kind: FrameKind, message: bytes, is_last: bool, path: bytes = b"") -> tuple[bytes, ...]:
    """Return a frame as what is best given to a socket one after the other."""
    begin = prefix(kind, len(message), is_last, path)
    return (begin + message,) if len(message) <= _SMALL_BYTES else (begin, message)


class FrameReader:
    """Makes frames of the bytes of a socket.

    Have `room` filled from the socket, and give the number of bytes to `received`.

    Args:
        scratch: Memory for small frames. Several readers may have the same, as what is in it is not
            needed after `received`.
        limit: The most bytes of a message, and of a path.
    """

    def __init__(self, scratch: bytearray, limit: int = MESSAGE_BYTES) -> None:
        self._limit = limit
        self._scratch = memoryview(scratch)
        self._rest = b""
        self._large: memoryview | None = None
        self._filled = 0

    def admit(self) -> None:
        """Let messages be as large as those of gRPC."""
        self._limit = MESSAGE_BYTES

    @property
    def room(self) -> memoryview:
        """Where the next bytes are to go."""
        return self._scratch if self._large is None else self._large[self._filled :]

    @property
    def is_within(self) -> bool:
        """Whether more of a large frame is about to come."""
        return self._large is not None

    def received(self, nbytes: int) -> list[SocketFrame]:
        """Return the frames that are complete now that so many bytes have come.

        Raises:
            MalformedStreamError: A message, or a path, is larger than it may be. Its memory was not
                taken.
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
                f"a message of {message} bytes for a path of {path} came over a "
                f"socket; at most {self._limit} are allowed of either"
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
