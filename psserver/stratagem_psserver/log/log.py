"""The log of one server: records in their order, and whether they are on disk."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_proto.log.batches import Entry
from stratagem_proto.server_log import LOG
from stratagem_proto.serving.figures import SECONDS, Histogram
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.v1.status_pb2 import LogStatus

# A batch beyond this size is written before more records join it.
_BATCH_BYTES = 64 << 20

# If the disk takes nothing for so long, those who wait are told so; the server goes on trying.
_PATIENCE_SECONDS = 10.0

_RETRY_SECONDS = 0.2


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
    share one wait for the disk. The thread of the disk takes them itself, without a turn of the
    event loop between two batches. All else is done on the loop, on which the log is made.

    Args:
        writer: Writes the records.
        disk: Runs the writer beside the loop, in one thread.
        label: The server's name, for messages.
        position: The position of the last record that is on disk.

    Attributes:
        position: The position of the last record that was appended.
        awaited: That of the last record for which answers wait.
        written: That of the last record that is on disk.
        on_leap: Called when a leap was appended, to begin an image.
    """

    def __init__(self, writer: Writer, disk: Executor, label: str, position: int) -> None:
        self._writer, self._disk, self._label = writer, disk, label
        self._loop = asyncio.get_running_loop()
        self.position = self.written = self.awaited = position
        # The loop adds records at the end, and the thread takes them from the front.
        self._pending: deque[Entry] = deque()
        self._pending_bytes = 0
        # Of the thread: what it writes now, also if it has to write it again, and the position of
        # the last record before.
        self._batch: list[Entry] = []
        self._before = position
        # Whether the thread has work, or will be given it again.
        self._is_busy = False
        self._writing: asyncio.Future[None] | None = None
        self._is_over = False
        self._retry: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._progress = 0
        # When the batch was begun that is not on disk yet, by the clock of the loop.
        self._since = 0.0
        self._seconds = Histogram(SECONDS)
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        # Those who wait for the disk alone, and not for an image.
        self._images: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._failure: StratagemError | None = None
        # The position of the last leap that no image contains; 0 if there is none.
        self._leap = 0
        self.on_leap: Callable[[], None] | None = None

    def append(
        self, record: LogRecord, tensors: bytes | memoryview = b"", is_awaited: bool = True
    ) -> int:
        """Add a record behind all others, and return its position.

        Args:
            record: What has changed.
            tensors: The bytes of its tensors, which nobody changes any more.
            is_awaited: Whether answers wait for it. Otherwise it is written with the next one for
                which they do, so it must be a change that its client tells again.
        """
        record.unix_seconds = time.time()
        return self.add(Entry(record.SerializeToString(), tensors), is_awaited)

    def add(self, entry: Entry, is_awaited: bool = True) -> int:
        """Add a record that is encoded already; as `append`."""
        self._pending.append(entry)
        self._pending_bytes += entry.nbytes
        self.position += 1
        if is_awaited:
            self.awaited = self.position
            if not self._is_busy:
                # Not at once: an answer that tells of several changes waits for one sync of all.
                self._loop.call_soon(self._ensure_writing)
        return self.position

    def report(self) -> LogStatus:
        """Return the message that describes it."""
        status = LogStatus(
            position=self.position,
            written=self.written,
            seconds=self._seconds.message(),
            failure=self._failure.message if self._failure else "",
        )
        if self._is_busy:
            status.writing_seconds = self._loop.time() - self._since
        return status

    def _ensure_writing(self) -> None:
        if self.awaited > self.written and not self._is_busy and not self._is_over:
            self._since = self._loop.time()
            self._begin_writing()

    def _await_all(self) -> None:
        self.awaited = self.position
        self._ensure_writing()

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
        """Wait until the record of that position is on disk, however long that takes.

        Raises:
            UnavailableError: The log is not written any more.
        """
        if self.written < position:
            if self._is_over:
                self._require_working()
            self._await_all()
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._images.append((position, change))
            await change

    @property
    def awaits_image(self) -> bool:
        """Whether nothing is durable before there is another image."""
        return self._leap > 0

    async def durable(self) -> None:
        """Wait until all records are on disk that answers wait for, of those appended before.

        Raises:
            UnavailableError: The disk takes too long or fails.
        """
        if self.written >= self.awaited and not self._leap:
            return
        self._require_working()
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.awaited, change))
        await change

    def _require_working(self) -> None:
        if self._failure is not None:
            raise UnavailableError(self._failure.message)

    def _begin_writing(self) -> None:
        self._is_busy = True
        self._progress += 1
        self._writing = self._loop.run_in_executor(self._disk, self._write_pending)
        self._writing.add_done_callback(self._stopped)
        if self._watch is None:
            self._watch_progress()

    def _write_pending(self) -> None:
        """Write batches until there is nothing more to write; in the thread of the disk."""
        while nbytes := self._take_batch():
            self._writer.write(self._before + 1, self._batch)
            self._before += len(self._batch)
            self._batch = []
            self._loop.call_soon_threadsafe(self._reach, self._before, nbytes)

    def _take_batch(self) -> int:
        """Fill the batch, unless that is to be written again; return its bytes.

        It stays empty while nobody waits: of 4 workers with small steps, every other batch would
        only tell what a client has finished, and their answers would wait for its sync.
        """
        if self.awaited <= self._before:
            return 0
        batch, nbytes = self._batch, sum(entry.nbytes for entry in self._batch)
        while self._pending and nbytes < _BATCH_BYTES:
            batch.append(self._pending.popleft())
            nbytes += batch[-1].nbytes
        return nbytes

    def _stopped(self, writing: asyncio.Future[None]) -> None:
        """Go on after the thread has written all that it saw, or has failed."""
        if writing.cancelled():
            return
        # Asked for also if the log is over: asyncio complains of errors that nobody has seen.
        error = writing.exception()
        if self._is_over:
            return
        if error is not None:
            why = error.strerror if isinstance(error, OSError) else None
            self._fail(f"{why or repr(error)}; see that its disk has space and works")
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._begin_writing)
            return
        self._is_busy = False
        self._ensure_writing()

    def _watch_progress(self) -> None:
        self._watch = self._loop.call_later(_PATIENCE_SECONDS, self._judge, self._progress)

    def _judge(self, progress: int) -> None:
        """Tell those who wait if nothing was written since then."""
        self._watch = None
        if not self._is_busy:
            return
        if self._progress == progress:
            self._fail(f"its disk has taken nothing for {_PATIENCE_SECONDS:g} s")
        self._watch_progress()

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

    def _reach(self, position: int, nbytes: int) -> None:
        self.written = position
        self._pending_bytes -= nbytes
        self._progress += 1
        if not self._is_over:
            self._failure = None
        now = self._loop.time()
        self._seconds.observe(now - self._since)
        self._since = now
        self._wake()

    def _wake(self) -> None:
        _wake(self._images, self.written)
        _wake(self._waiting, min(self.written, self._leap - 1) if self._leap else self.written)

    async def close(self) -> None:
        """Wait until all records are on disk, or the disk fails."""
        self._await_all()
        while self._is_busy and self._failure is None:
            assert self._writing is not None
            await asyncio.wait([self._writing], timeout=_RETRY_SECONDS)
        self.stop()

    def stop(self) -> None:
        """Write nothing more, and tell so those who wait for what is not on disk."""
        self._is_over = True
        for timer in (self._retry, self._watch):
            if timer is not None:
                timer.cancel()
        self._failure = UnavailableError(
            f"{self._label} writes its log no more; repeat the request"
        )
        for _, change in (*self._waiting, *self._images):
            if not change.done():
                change.set_exception(UnavailableError(self._failure.message))


def _wake(waiting: deque[tuple[int, asyncio.Future[None]]], position: int) -> None:
    while waiting and waiting[0][0] <= position:
        _, change = waiting.popleft()
        if not change.done():
            change.set_result(None)
