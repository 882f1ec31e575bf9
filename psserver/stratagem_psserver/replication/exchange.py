"""What a primary and its backup exchange: messages of a bounded size, a lease, and how fast."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from stratagem_proto.errors import DataLossError
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.v1.replication_pb2 import (
    BatchPiece,
    FollowRequest,
    FollowResponse,
    ImageBegin,
    ImagePiece,
)
from stratagem_psserver.environment import Clock
from stratagem_storage.log import (
    HEADER_BYTES,
    Entry,
    Record,
    decode_contents,
    decode_header,
    encode_batch,
)

Sent = TypeVar("Sent", contravariant=True)
Received = TypeVar("Received", covariant=True)


class Channel(Protocol[Sent, Received]):
    """One end of a call by which a backup follows its primary."""

    async def send(self, message: Sent) -> None:
        """Send a message behind all others; raise UnavailableError if the other end is gone."""

    async def receive(self) -> Received:
        """Return the next message; raise UnavailableError if there is none any more."""


class DialledChannel(Channel[Sent, Received], Protocol[Sent, Received]):
    """The end of whoever has called."""

    async def close(self) -> None:
        """End the call; a repetition does nothing."""


class Peers(Protocol):
    """How a replica reaches the others of its task."""

    def call(self, address: str) -> DialledChannel[FollowRequest, FollowResponse]:
        """Call the primary at an address."""

    async def instance_at(self, address: str) -> bytes:
        """Return the instance of the replica at an address; empty if none answers."""


class Race:
    """Runs coroutines until one of them ends, or all are to."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[None]] = []

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run them; cancel the others when one ends, and raise what has ended it."""
        self._tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


class Alarm:
    """Wakes whoever waits when it is set, or after a while."""

    def __init__(self) -> None:
        self._rings = asyncio.Event()

    def set(self) -> None:
        """End the present wait, or else the next one."""
        self._rings.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, but no longer than for so many seconds."""
        # As `asyncio.wait_for` does with a task of its own each time.
        timer = asyncio.get_running_loop().call_later(seconds, self._rings.set)
        try:
            await self._rings.wait()
        finally:
            timer.cancel()
        self._rings.clear()


class Lease:
    """The lease that a backup gives its primary by acknowledging beacons.

    It is counted from when a beacon was sent, and the backup waits for longer from when it has
    received the beacon. So it is over before the backup takes over, if the clocks of the two run
    about equally fast; they need not agree.

    Args:
        seconds: How long it lasts.
        began: When the backup has come; before its first answer there is no lease.
    """

    def __init__(self, seconds: float, began: float) -> None:
        self._seconds = seconds
        self._number = 0
        # Beacons that are not acknowledged, and when they were sent.
        self._sent: deque[tuple[int, float]] = deque()
        self._until = began

    def may_send(self, now: float) -> bool:
        """Return whether to send a beacon.

        A primary that hears nothing from its backup may be heard by it all the same. It cannot
        answer then, and by further beacons would keep the backup from taking over.
        """
        return self.is_valid(now) or not self._sent

    def send(self, now: float) -> int:
        """Return the number of a beacon that is sent now."""
        self._number += 1
        self._sent.append((self._number, now))
        return self._number

    def acknowledge(self, number: int) -> None:
        """Note that the backup has received a beacon, and so those before."""
        while self._sent and self._sent[0][0] <= number:
            self._until = self._sent.popleft()[1] + self._seconds

    def is_valid(self, now: float) -> bool:
        """Return whether the primary may answer now."""
        return now < self._until

    def was_heard_since(self, moment: float) -> bool:
        """Return whether a beacon came back that was sent at a moment or later."""
        return self._until >= moment + self._seconds

    def silence(self, now: float) -> float:
        """Return the seconds since the last beacon was sent that came back."""
        return max(now - self._until + self._seconds, 0.0)


# For so much time in which less was sent than may be, more is sent afterwards.
_MADE_UP_SECONDS = 0.5


class Pace:
    """Keeps to so many bytes in a second; 0 are as many as possible."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._bytes_per_second, self._clock = bytes_per_second, clock
        self._due = clock()

    def wait_after(self, nbytes: int) -> float:
        """Return for how many seconds to send nothing, after so many bytes."""
        if not self._bytes_per_second:
            return 0.0
        now = self._clock()
        begin = max(self._due, now - _MADE_UP_SECONDS)
        self._due = begin + nbytes / self._bytes_per_second
        return max(self._due - now, 0.0)


# A backup that loads an image, or is slow, has at most so many bytes of records more than it wants.
_WINDOW_BYTES = 64 << 20


class Window:
    """Counts the bytes of records that were sent and are not acknowledged."""

    def __init__(self) -> None:
        # The last position of each batch, and its bytes.
        self._sent: deque[tuple[int, int]] = deque()
        self._nbytes = 0

    @property
    def is_open(self) -> bool:
        """Whether to send more records, however large the next one is."""
        return self._nbytes < _WINDOW_BYTES

    def send(self, last: int, nbytes: int) -> None:
        self._sent.append((last, nbytes))
        self._nbytes += nbytes

    def acknowledge(self, position: int) -> None:
        while self._sent and self._sent[0][0] <= position:
            self._nbytes -= self._sent.popleft()[1]


def batch_messages(first: int, entries: list[Entry]) -> Iterator[FollowResponse]:
    """Yield the messages that carry consecutive records, of which the first has a position."""
    data = memoryview(b"".join(encode_batch(first, entries)))
    for begin in range(0, len(data), CHUNK_BYTES):
        piece = bytes(data[begin : begin + CHUNK_BYTES])
        is_last = begin + CHUNK_BYTES >= len(data)
        yield FollowResponse(batch=BatchPiece(data=piece, is_last=is_last))


class Arrival(NamedTuple):
    """A record that has come: as bytes, and decoded."""

    entry: Entry
    record: Record


class BatchAssembler:
    """Puts batches together from their pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, piece: BatchPiece) -> list[Arrival]:
        """Return the records of the batch that a piece completes; DataLossError if damaged."""
        self._pieces.append(piece.data)
        if not piece.is_last:
            return []
        data = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        header = decode_header(data[:HEADER_BYTES])
        entries = decode_contents(header, data[HEADER_BYTES:]) if header else None
        if header is None or entries is None:
            raise DataLossError("a batch of records was damaged on its way; it is asked for again")
        arrivals = []
        for position, entry in enumerate(entries, header.first):
            message = LogRecord.FromString(entry.message)
            arrivals.append(Arrival(entry, Record(position, message, memoryview(entry.tensors))))
        return arrivals


def image_messages(
    files: Iterable[tuple[str, memoryview]], begin: ImageBegin
) -> Iterator[FollowResponse]:
    """Yield the messages that carry the files of an image."""
    yield FollowResponse(image=begin)
    for path, piece in files:
        yield FollowResponse(piece=ImagePiece(path=path, data=bytes(piece)))
    yield FollowResponse(piece=ImagePiece(is_last=True))
