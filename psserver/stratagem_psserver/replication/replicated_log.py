"""The log of a primary: its records go to a backup, and to disk if it keeps a log there."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from stratagem_proto.errors import NotPrimaryError, UnavailableError
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.v1.status_pb2 import LogStatus
from stratagem_psserver.log.log import Log
from stratagem_psserver.persistence.replay import RetainedRecords
from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_storage.log import Entry

# Those who wait are told so after this time, and repeat their requests.
_PATIENCE_SECONDS = 10.0


class ReplicatedLog:
    """Gives records their positions and passes them on; used on the event loop alone.

    Attributes:
        position: The position of the last record that was appended.
        awaited: The position of the last one for which answers wait.
        disk: The log on disk.
        may_answer: Returns whether an answer may leave that tells of records up to a position.
        on_leap: Called when a leap was appended, which only an image can follow.
        retained: The records that an image may lack.
        follower: The backup, which gets each record; None if there is none.
    """

    def __init__(
        self, position: int, disk: Log | None, retained: RetainedRecords, label: str
    ) -> None:
        self.position = self.awaited = position
        self.may_answer: Callable[[int], bool] = lambda position: True
        self.on_leap: Callable[[], None] = lambda: None
        self.follower: BackupLink | None = None
        self.disk, self.retained, self._label = disk, retained, label
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._room: asyncio.Event = asyncio.Event()
        self._ended: UnavailableError | None = None

    def append(
        self, record: LogRecord, tensors: bytes | memoryview = b"", is_awaited: bool = True
    ) -> int:
        """As `Log.append`."""
        record.unix_seconds = time.time()
        entry = Entry(record.SerializeToString(), tensors)
        self.position += 1
        if record.HasField("mutation"):
            self.retained.add(self.position, entry)
        if self.follower is not None:
            self.follower.add(self.position, entry)
        if self.disk is not None:
            self.disk.add(entry, is_awaited)
        if is_awaited:
            self.awaited = self.position
        return self.position

    def leap(self) -> None:
        """Add a record that only an image can follow."""
        self.position = self.awaited = self.position + 1
        if self.disk is not None:
            self.disk.leap()
        self.on_leap()

    async def caught_up(self) -> None:
        """Wait until disk and backup keep up; raise UnavailableError if the disk fails."""
        if self.disk is not None:
            await self.disk.caught_up()
        while self.follower is not None and not self.follower.has_room:
            self._room.clear()
            await self._room.wait()
        self._require_going_on()

    async def durable(self) -> None:
        """Wait until all records are where they have to be that answers wait for."""
        position = self.awaited
        if self.disk is not None:
            # The backup gets the records while the disk does.
            await self.disk.durable(alone=self.follower is None)
        self._require_going_on()
        if not self.may_answer(position):
            await self._permitted(position)

    async def _permitted(self, position: int) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((position, change))
        try:
            await asyncio.wait_for(change, _PATIENCE_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            raise UnavailableError(
                f"{self._label} has heard nothing of its backup for {_PATIENCE_SECONDS:g} s, and "
                "may not go on without it before the arbiter says so. Nothing is lost: repeat the "
                "request, and see that the arbiter can be reached"
            ) from None

    def progressed(self) -> None:
        """Let those go on who may, after `may_answer` has changed or the backup has caught up."""
        self._room.set()
        still: deque[tuple[int, asyncio.Future[None]]] = deque()
        for position, change in self._waiting:
            if change.done():
                continue
            if self.may_answer(position):
                change.set_result(None)
            else:
                still.append((position, change))
        self._waiting = still

    def end(self, error: UnavailableError) -> None:
        """Answer nothing any more, since this server is not the primary."""
        self._ended = error
        self._room.set()
        for _, change in self._waiting:
            if not change.done():
                change.set_exception(_again(error))
        self._waiting.clear()

    def _require_going_on(self) -> None:
        if self._ended is not None:
            raise _again(self._ended)

    def report(self) -> LogStatus | None:
        return self.disk.report() if self.disk else None

    async def on_disk(self, position: int) -> None:
        """As `Log.on_disk`; at once without a log there."""
        if self.disk is not None:
            await self.disk.on_disk(position)


def _again(error: UnavailableError) -> UnavailableError:
    """Return the error for one more call, since each has a traceback of its own."""
    again = type(error)(error.message)
    if isinstance(error, NotPrimaryError) and isinstance(again, NotPrimaryError):
        again.primary, again.epoch = error.primary, error.epoch
    return again
