"""The primary's end of the call by which a backup follows it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_proto.v1.replication_pb2 import (
    Beacon,
    FollowRequest,
    FollowResponse,
    Replica,
    StateDigest,
    View,
)
from stratagem_psserver.environment import Clock
from stratagem_psserver.replication.exchange import (
    Alarm,
    Channel,
    Lease,
    Pace,
    Race,
    Window,
    batch_messages,
)
from stratagem_storage.log import Entry

# No more records are applied while so many bytes wait to be sent.
_MOST_BYTES = 256 << 20

# Records of one batch; those that come while it is sent form the next one.
_BATCH_BYTES = 4 << 20

# In a pause that the pace makes, the time between two looks at what waits to be sent.
_GLANCE_SECONDS = 0.1

# Beacons within a lease.
_BEACONS = 4


class BackupLink:
    """Sends records to a backup in their order, and notes what it acknowledges.

    Attributes:
        acknowledged: The position up to which the backup has all records; -1 before it has the
            image.
        lease: Whether the backup waits for the primary.
        takes_over: Whether the task moves to the backup.
        pace: How fast it is sent the image.
    """

    def __init__(
        self,
        replica: Replica,
        channel: Channel[FollowResponse, FollowRequest],
        view: Callable[[], View],
        lease_seconds: float,
        clock: Clock,
        on_progress: Callable[[], None],
    ) -> None:
        self.replica, self.takes_over = replica, False
        self.pace = Pace(0, clock)
        self.acknowledged = -1
        self.lease = Lease(lease_seconds, clock())
        # The last digest of its state that the backup has told.
        self._digest, self._digested = StateDigest(), asyncio.Event()
        self._is_over = False
        self._channel, self._view = channel, view
        self._lease_seconds, self._clock = lease_seconds, clock
        self._on_progress = on_progress
        self._queue: deque[tuple[int, Entry]] = deque()
        self._queued_bytes, self._window = 0, Window()
        self._filled = asyncio.Event()
        # Beacons go between the pieces of what takes long.
        self._sending, self._due = asyncio.Lock(), Alarm()
        self._parts = Race()

    def add(self, position: int, entry: Entry) -> None:
        self._queue.append((position, entry))
        self._queued_bytes += entry.nbytes
        self._filled.set()

    @property
    def has_room(self) -> bool:
        """Whether so little waits to be sent that more records may be applied."""
        return self._queued_bytes < _MOST_BYTES

    def begin_after(self, position: int) -> None:
        """Send only records behind a position, which an image contains."""
        while self._queue and self._queue[0][0] <= position:
            self._take()

    async def run(self, records: Coroutine[Any, Any, None]) -> None:
        """Send beacons and `records`, and note acknowledgements; raise what ends the call."""
        await self._parts.run(self._beat(), self._receive(), records)

    async def send_image(self, messages: Iterator[FollowResponse]) -> None:
        """Send an image, which a thread makes message by message, at the pace that there is."""
        while (message := await _made(messages)) is not None:
            await self._send(message)
            await self._rest(self.pace.wait_after(len(message.piece.data)))

    async def _rest(self, seconds: float) -> None:
        """Wait, but not for so long that updates wait until there is room for their records."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0.0 and self._queued_bytes < _MOST_BYTES // 2:
            await asyncio.sleep(min(left, _GLANCE_SECONDS))

    async def send_needed(self, records: Iterable[tuple[int, Entry]]) -> None:
        for position, entry in records:
            await self._send_batch(position, [entry])

    async def hand_over(self, view: View) -> None:
        """Tell the backup that it is the primary of a view; raise nothing, for it can also ask."""
        with suppress(UnavailableError):
            await self._send(FollowResponse(handed_over=view))

    async def send_records(self) -> None:
        """Send records as they come and the backup has room for them, for ever."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while self._queue and self._window.is_open:
                first, entries = self._next_batch()
                nbytes = sum(entry.nbytes for entry in entries)
                self._window.send(first + len(entries) - 1, nbytes)
                await self._send_batch(first, entries)
                self._on_progress()

    def _next_batch(self) -> tuple[int, list[Entry]]:
        first, entry = self._take()
        entries, nbytes = [entry], entry.nbytes
        for expected in count(first + 1):
            if not self._queue or self._queue[0][0] != expected or nbytes >= _BATCH_BYTES:
                return first, entries
            entries.append(self._take()[1])
            nbytes += entries[-1].nbytes
        raise AssertionError

    def _take(self) -> tuple[int, Entry]:
        position, entry = self._queue.popleft()
        self._queued_bytes -= entry.nbytes
        return position, entry

    async def _send_batch(self, first: int, entries: list[Entry]) -> None:
        for message in batch_messages(first, entries):
            await self._send(message)

    async def _send(self, message: FollowResponse) -> None:
        async with self._sending:
            await self._channel.send(message)

    async def _beat(self) -> None:
        while True:
            if self.lease.may_send(self._clock()):
                number = self.lease.send(self._clock())
                await self._send(FollowResponse(beacon=Beacon(number=number, view=self._view())))
            await self._due.wait(self._lease_seconds / _BEACONS)

    def beat(self) -> None:
        self._due.set()

    async def _receive(self) -> None:
        while True:
            told = (await self._channel.receive()).acknowledgement
            if told.HasField("position"):
                self._acknowledge(told.position)
            self.lease.acknowledge(told.beacon)
            if told.HasField("digest"):
                self._digest = told.digest
                self._digested.set()
            self._on_progress()

    def _acknowledge(self, position: int) -> None:
        self.acknowledged = max(self.acknowledged, position)
        self._window.acknowledge(position)
        if self._queue:
            self._filled.set()

    async def digests_at(self, position: int) -> Mapping[str, bytes] | None:
        """Wait for the digests of the backup's state at a mark; None if the call ends before."""
        while self._digest.position < position and not self._is_over:
            self._digested.clear()
            await self._digested.wait()
        return dict(self._digest.parts) if self._digest.position == position else None

    def close(self) -> None:
        """End the call; a repetition does nothing."""
        self._is_over = True
        self._digested.set()
        self._parts.end()


async def _made(messages: Iterator[FollowResponse]) -> FollowResponse | None:
    """Return the next message; None behind the last one."""
    making = asyncio.get_running_loop().run_in_executor(None, next, messages, None)
    try:
        return await asyncio.shield(making)
    finally:
        # A thread is not cancelled with what waits for it, however often that is, and reads what is
        # closed behind this.
        while not making.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([making])


def reason_of(error: BaseException) -> str:
    return error.message if isinstance(error, StratagemError) else repr(error)
