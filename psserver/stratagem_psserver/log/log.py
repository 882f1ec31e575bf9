"""The log of one server: records in their order, and whether they are on disk."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import accumulate, takewhile
from typing import Protocol, TypeAlias

from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_proto.log.batches import Entry
from stratagem_proto.server_log import LOG
from stratagem_proto.v1.log_pb2 import LogRecord

# A batch beyond this size is written before more records join it.
_BATCH_BYTES = 64 << 20

# Those who wait longer for the disk are told so; the server goes on trying.
_PATIENCE_SECONDS = 10.0

_RETRY_SECONDS = 0.2

RunOnDisk: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a function that waits for the disk, beside the event loop; one at a time."""


class Writer(Protocol):
    """What writes records; see `SegmentWriter`."""

    def write(self, first: int, entries: list[Entry]) -> None:
        """Write records and return once they are on disk.

        Raises:
            OSError: They could not be written; the same records may be written again.
        """


class Log:
    """A log whose records are written in batches, one after the other.

    All records that are appended while a batch is being written form the next batch, so that they
    share one wait for the disk. Used on the event loop.

    Args:
        writer: Writes the records.
        run_on_disk: Runs the writer.
        label: The server's name, for messages.
        position: The position of the last record that is on disk.

    Attributes:
        position: The position of the last record that was appended.
        written: That of the last record that is on disk.
        on_leap: Called when a leap was appended, to begin an image.
    """

    def __init__(self, writer: Writer, run_on_disk: RunOnDisk, label: str, position: int) -> None:
        self._writer, self._run_on_disk, self._label = writer, run_on_disk, label
        self.position = self.written = position
        self._pending: list[Entry] = []
        self._pending_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        # Those who wait for the disk alone, and not for an image.
        self._images: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._failure: StratagemError | None = None
        # The position of the last leap that no image contains; 0 if there is none.
        self._leap = 0
        self.on_leap: Callable[[], None] | None = None

    def append(self, record: LogRecord, tensors: bytes | memoryview = b"") -> int:
        """Add a record behind all others, and return its position.

        Args:
            record: What has changed.
            tensors: The bytes of its tensors, which nobody changes any more.
        """
        record.unix_seconds = time.time()
        entry = Entry(record.SerializeToString(), tensors)
        self._pending.append(entry)
        self._pending_bytes += entry.nbytes
        self.position += 1
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flush())
        return self.position

    def leap(self) -> None:
        """Add a record that only an image can follow; nothing is durable before there is one."""
        self._leap = self.append(LogRecord(leap=True))
        if self.on_leap is not None:
            self.on_leap()

    def covered(self, position: int) -> None:
        """Note that an image contains all changes up to a position."""
        if position >= self._leap:
            self._leap = 0
            self._wake()

    async def caught_up(self) -> None:
        """Wait until the records that await the disk take less memory than a batch.

        Raises:
            UnavailableError: The disk takes too long or fails.
        """
        self._require_working()
        if self._pending_bytes >= _BATCH_BYTES:
            await self.durable()

    async def on_disk(self, position: int) -> None:
        """Wait until the record of that position is on disk, however long that takes."""
        if self.written < position:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._images.append((position, change))
            await change

    @property
    def awaits_image(self) -> bool:
        """Whether nothing is durable before there is another image."""
        return self._leap > 0

    async def durable(self) -> None:
        """Wait until all records are on disk that were appended before.

        Raises:
            UnavailableError: The disk takes too long or fails.
        """
        if self.written == self.position and not self._leap:
            return
        self._require_working()
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.position, change))
        await change

    def _require_working(self) -> None:
        if self._failure is not None:
            raise UnavailableError(self._failure.message)

    async def _flush(self) -> None:
        try:
            while self._pending:
                entries = self._next_batch()
                await self._write(entries)
                self._reach(self.written + len(entries))
        finally:
            self._flushing = None

    def _next_batch(self) -> list[Entry]:
        sizes = accumulate(entry.nbytes for entry in self._pending)
        count = 1 + sum(1 for _ in takewhile(lambda nbytes: nbytes < _BATCH_BYTES, sizes))
        batch, self._pending = self._pending[:count], self._pending[count:]
        self._pending_bytes -= sum(entry.nbytes for entry in batch)
        return batch

    async def _write(self, entries: list[Entry]) -> None:
        """Write a batch, however often that takes."""
        work = partial(self._writer.write, self.written + 1, entries)
        while True:
            writing = asyncio.ensure_future(self._run_on_disk(work))
            await asyncio.wait([writing], timeout=_PATIENCE_SECONDS)
            if not writing.done():
                self._fail(f"its disk has taken nothing for {_PATIENCE_SECONDS:g} s")
                await asyncio.wait([writing])
            error = writing.exception()
            if error is None:
                self._failure = None
                return
            if not isinstance(error, OSError):
                raise error
            self._fail(f"{error.strerror or error}; see that its disk has space and works")
            await asyncio.sleep(_RETRY_SECONDS)

    def _fail(self, why: str) -> None:
        """Tell all who wait that the disk does not take records."""
        self._failure = UnavailableError(
            f"{self._label} cannot write its log: {why}. Nothing is lost: it tries again, and "
            "answers requests that are repeated once it has succeeded"
        )
        LOG.warning("cannot write the log", task=self._label, why=why)
        while self._waiting:
            _, change = self._waiting.popleft()
            if not change.done():
                change.set_exception(UnavailableError(self._failure.message))

    def _reach(self, position: int) -> None:
        self.written = position
        self._wake()

    def _wake(self) -> None:
        _wake(self._images, self.written)
        _wake(self._waiting, min(self.written, self._leap - 1) if self._leap else self.written)

    async def close(self) -> None:
        """Wait until all records are on disk, or the disk fails."""
        while self._flushing is not None and self._failure is None:
            await asyncio.wait([self._flushing], timeout=_RETRY_SECONDS)
        if self._flushing is not None:
            self._flushing.cancel()


def _wake(waiting: deque[tuple[int, asyncio.Future[None]]], position: int) -> None:
    while waiting and waiting[0][0] <= position:
        _, change = waiting.popleft()
        if not change.done():
            change.set_result(None)
