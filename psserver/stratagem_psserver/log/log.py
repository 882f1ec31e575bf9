"""The log of one server: records in their order, and whether they are on disk."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

from stratagem_proto.errors import StratagemError, UnavailableError
from stratagem_proto.v1.log_pb2 import LogRecord
from stratagem_proto.v1.status_pb2 import LogStatus
from stratagem_rpc.server_log import LOG
from stratagem_rpc.serving.figures import SECONDS, Histogram
from stratagem_storage.log import Entry


class DiskThread:
    """Does one thing whenever it is woken.

    To pass work to a pool of threads, and its end back to the loop, takes longer than a fast disk.
    Here each is one element of a queue.

    Args:
        work: What it does, which raises nothing. It is done again for each `wake` meanwhile.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # False is the end.
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._notices: SimpleQueue[None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._orders.get():
            self._work()

    def wake(self) -> None:
        self._orders.put(True)

    def notify(self) -> None:
        """Have `wait` return; in the work."""
        self._notices.put(None)

    def wait(self, seconds: float) -> bool:
        """Block until the work notifies, and return whether it has in so many seconds."""
        try:
            self._notices.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        return True

    def end(self) -> None:
        """Work no more, once the present work is done."""
        self._orders.put(False)

    def join(self) -> None:
        self._thread.join()


# A batch beyond this size is written before more records join it.
_BATCH_BYTES = 64 << 20

# If the disk takes nothing for so long, those who wait are told so; the server goes on trying.
_PATIENCE_SECONDS = 10.0

_RETRY_SECONDS = 0.2

# The longest time for which the loop stands still for the disk. To go on meanwhile and come back
# costs about as much of its time.
_STAND_SECONDS = 0.5e-3


class Writer(Protocol):
    """What writes records; see `SegmentWriter`."""

    def write(self, first: int, entries: list[Entry]) -> None:
        """Return once records are on disk; after an OSError they may be written again."""


class Log:
    """A log whose records are written in batches, one after the other.

    All records that are appended while a batch is being written form the next batch, so that they
    share one wait for the disk. The thread of the disk takes them itself, without a turn of the
    event loop between two batches. All else is done on the loop, on which the log is made.

    Attributes:
        position: The position of the last record that was appended.
        awaited: That of the last record for which answers wait.
        written: That of the last record that is on disk.
        on_leap: Called when a leap was appended, to begin an image.
    """

    def __init__(self, writer: Writer, label: str, position: int) -> None:
        self._writer, self._label = writer, label
        self._loop = asyncio.get_running_loop()
        self.position = self.written = self.awaited = position
        # The loop adds records at the end, and the thread takes them from the front.
        self._pending: deque[Entry] = deque()
        self._added_bytes = self._written_bytes = 0
        # Of the thread: what it writes now, also if it has to write it again.
        self._batch: list[Entry] = []
        self._is_over = False
        self._retry: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        # By the clock of the loop: when there was something to write again, and when the last
        # batch was on disk.
        self._awaited_since = self._reached = 0.0
        self._seconds = Histogram(SECONDS)
        self._turn = _Turn()
        # Whether the last batch was on disk so soon that it is worth to stand still for the next.
        self._is_fast = False
        # Whether the loop stands still, and is to be told by the thread directly.
        self._stands = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        # Those who wait for the disk alone, and not for an image.
        self._images: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._failure: StratagemError | None = None
        # The position of the last leap that no image contains; 0 if there is none.
        self._leap = 0
        self.on_leap: Callable[[], None] | None = None
        self._thread = DiskThread(self._write_pending)

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
        self._pending.append(entry)
        self._added_bytes += entry.nbytes
        self.position += 1
        if is_awaited:
            if self.awaited <= self.written:
                self._awaited_since = self._loop.time()
            self.awaited = self.position
            # Not at once: an answer that tells of several changes waits for one sync of all.
            self._begin_soon()
        return self.position

    def report(self) -> LogStatus:
        status = LogStatus(
            position=self.position,
            written=self.written,
            seconds=self._seconds.message(),
            failure=self._failure.message if self._failure else "",
        )
        if self.awaited > self.written:
            status.writing_seconds = self._loop.time() - max(self._awaited_since, self._reached)
        return status

    def _begin_soon(self) -> None:
        if not self._turn.has_end:
            self._turn.has_end = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn = _Turn(is_crowded=self._turn.answers > 1)
        self._begin()

    def _begin(self) -> None:
        """Have the thread write what is awaited, unless the disk has just failed."""
        if self.awaited > self.written and self._retry is None and not self._is_over:
            self._thread.wake()
            if self._watch is None:
                self._watch = self._loop.call_later(_PATIENCE_SECONDS, self._judge, self.written)

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
        """Wait until what awaits the disk is less than a batch; UnavailableError if it fails."""
        self._require_working()
        if self._added_bytes - self._written_bytes >= _BATCH_BYTES:
            await self.durable()

    async def on_disk(self, position: int) -> None:
        """Wait, however long, until a record is on disk; UnavailableError if the log is over."""
        if self.written < position:
            if self._is_over:
                self._require_working()
            await self._change_at(position)

    def _change_at(self, position: int) -> asyncio.Future[None]:
        """Return what is done once a record is on disk."""
        change: asyncio.Future[None] = self._loop.create_future()
        self._images.append((position, change))
        if self.awaited < self.position:
            if self.awaited <= self.written:
                self._awaited_since = self._loop.time()
            self.awaited = self.position
        self._begin()
        return change

    @property
    def awaits_image(self) -> bool:
        """Whether nothing is durable before there is another image."""
        return self._leap > 0

    async def durable(self, alone: bool = True) -> None:
        """Wait until all records are on disk that answers wait for, of those appended before.

        Args:
            alone: Whether nothing else is to be done meanwhile for the same answer.

        Raises:
            UnavailableError: The disk takes too long or fails.
        """
        if self.written >= self.awaited and not self._leap:
            return
        self._require_working()
        self._turn.answers += 1
        self._begin_soon()
        if alone and self._may_stand() and self._stand():
            return
        change: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self.awaited, change))
        await change

    def _require_working(self) -> None:
        if self._failure is not None:
            raise UnavailableError(self._failure.message)

    def _may_stand(self) -> bool:
        """Return whether an answer is the only one, and probably waits shortly.

        Where there are more of them, the loop comes to the next one while the thread writes, and
        several share a wait for the disk.
        """
        turn = self._turn
        is_only = turn.answers == 1 and not turn.is_crowded and not self._waiting
        return is_only and self._is_fast and not self._leap and self._retry is None

    def _stand(self) -> bool:
        """Stand still for the disk, for a short time; return whether all is there.

        A write on the loop itself would take no thread, but nothing could end it: a disk that hangs
        would be taken for a dead server.
        """
        self._stands = True
        self._begin()
        end = time.perf_counter() + _STAND_SECONDS
        while self.written < self.awaited and self._thread.wait(end - time.perf_counter()):
            pass
        # Only then is `written` looked at: what the thread writes later, it tells the loop.
        self._stands = False
        self._reach()
        return self.written >= self.awaited

    def _write_pending(self) -> None:
        """Write batches until there is nothing more to write; in the thread of the disk."""
        try:
            while nbytes := self._take_batch():
                began = self._loop.time()
                self._writer.write(self.written + 1, self._batch)
                now = self._loop.time()
                self._seconds.observe(now - max(self._awaited_since, self._reached))
                self._is_fast, self._reached = now - began < _STAND_SECONDS, now
                self._written_bytes += nbytes
                self.written += len(self._batch)
                self._batch = []
                if self._stands:
                    self._thread.notify()
                else:
                    self._tell(self._reach)
        except Exception as error:
            self._is_fast = False
            self._tell(self._failed, error)

    def _take_batch(self) -> int:
        """Fill the batch, unless that is to be written again; return its bytes.

        It stays empty while nobody waits: of 4 workers with small steps, every other batch would
        only tell what a client has finished, and their answers would wait for its sync.
        """
        if self.awaited <= self.written or self._is_over:
            return 0
        batch, nbytes = self._batch, sum(entry.nbytes for entry in self._batch)
        while self._pending and nbytes < _BATCH_BYTES:
            batch.append(self._pending.popleft())
            nbytes += batch[-1].nbytes
        return nbytes

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *arguments)

    def _failed(self, error: Exception) -> None:
        """Tell those who wait that the disk has failed, and have it try again."""
        if self._is_over:
            return
        why = error.strerror if isinstance(error, OSError) else None
        self._fail(f"{why or repr(error)}; see that its disk has space and works")

        def retry() -> None:
            self._retry = None
            self._begin()

        if self._retry is None:
            self._retry = self._loop.call_later(_RETRY_SECONDS, retry)

    def _judge(self, written: int) -> None:
        """Tell those who wait if nothing was written since then."""
        self._watch = None
        if self.written >= self.awaited:
            return
        if self.written == written and self._failure is None:
            self._fail(f"its disk has taken nothing for {_PATIENCE_SECONDS:g} s")
        self._watch = self._loop.call_later(_PATIENCE_SECONDS, self._judge, self.written)

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

    def _reach(self) -> None:
        """Let those go on whose records are on disk."""
        if not self._is_over:
            self._failure = None
        self._wake()

    def _wake(self) -> None:
        _wake(self._images, self.written)
        _wake(self._waiting, min(self.written, self._leap - 1) if self._leap else self.written)

    async def close(self) -> None:
        """Wait until all records are on disk, or the disk fails."""
        if self.written < self.position:
            change = self._change_at(self.position)
            while not change.done() and self._failure is None:
                await asyncio.wait([change], timeout=_RETRY_SECONDS)
            change.cancel()
        self.stop()

    def stop(self) -> None:
        """Write nothing more, and tell so those who wait for what is not on disk."""
        self._is_over = True
        self._thread.end()
        for timer in (self._retry, self._watch):
            if timer is not None:
                timer.cancel()
        self._failure = UnavailableError(
            f"{self._label} writes its log no more; repeat the request"
        )
        for _, change in (*self._waiting, *self._images):
            if not change.done():
                change.set_exception(UnavailableError(self._failure.message))

    def join(self) -> None:
        """Block until the thread has ended that wrote it, after `stop`."""
        self._thread.join()


@dataclass
class _Turn:
    """A turn of the event loop in which records are appended, or answers wait for them.

    Attributes:
        is_crowded: Whether several answers waited in the one before.
        answers: How many have begun to wait.
        has_end: Whether it is asked to write what it leaves.
    """

    is_crowded: bool = False
    answers: int = 0
    has_end: bool = False


def _wake(waiting: deque[tuple[int, asyncio.Future[None]]], position: int) -> None:
    while waiting and waiting[0][0] <= position:
        _, change = waiting.popleft()
        if not change.done():
            change.set_result(None)
