"""The disk of a server's tables, and the memory for those of their rows that are used most."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from stratagem_proto.errors import DataLossError, StratagemError
from stratagem_psserver.tables.direct_file import PAGE, Bytes, ReadQueue, aligned

if TYPE_CHECKING:
    from stratagem_psserver.tables.row_store import RowStore

MOST_HEAT = 255
"""A row has one more heat with each request for it, up to this."""

# What is evicted at once is this part of the budget, and has at most so many bytes; the coldest
# rows are looked for among those of so many times the bytes.
_SHARE, _MOST_EVICTED, _LOOKED_AT = 32, 4 << 20, 16

# What comes later is read when it is asked for.
_MOST_ANNOUNCED = 4


@dataclass
class DiskCounts:
    """What a server has done with rows on its disk.

    Attributes:
        lookups: Requests for rows.
        found: Rows that were asked for and were in memory.
        missed: Rows that were asked for and were not.
        evicted_bytes: Bytes of rows that left memory.
        changed_bytes: Those of rows that had changed, which were written.
    """

    lookups: int = 0
    found: int = 0
    missed: int = 0
    evicted_bytes: int = 0
    changed_bytes: int = 0


class TableDisk:
    """The disk of a server's tables, and the memory for their rows.

    The files are no second truth: they have no names and end with the process. What a crash loses
    is what the durability says.

    Args:
        budget: Most bytes of rows in memory.
        folder: The folder for the files.
    """

    def __init__(self, budget: int, folder: str) -> None:
        self.budget, self.folder = budget, folder
        self.counts = DiskCounts()
        # Of all tables, since the memory for a row of one may have to come from another.
        self.lock = threading.RLock()
        self._stores: WeakSet[RowStore] = WeakSet()
        self._queues = list[ReadQueue]()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="table-ahead")
        self._announced = threading.Semaphore(_MOST_ANNOUNCED)
        # Not of the allocator: what is taken and freed between a request's tensors parts memory.
        self._scratch = aligned(PAGE)
        self._failure: StratagemError | None = None

    def add(self, store: RowStore) -> None:
        """Have a table on the disk."""
        with self.lock:
            self._stores.add(store)

    @property
    def stores(self) -> list[RowStore]:
        """The tables on the disk."""
        return list(self._stores)

    @property
    def resident_bytes(self) -> int:
        """The bytes of memory for rows."""
        return sum(store.slots * store.slot_bytes for store in self.stores)

    @property
    def file_bytes(self) -> int:
        """The bytes of all files."""
        return sum(store.log.file_bytes for store in self.stores)

    def scratch(self, count: int, nbytes: int) -> Bytes:
        """Return memory for records, all zeros, until the next call; the lock is held."""
        if count * nbytes > len(self._scratch):
            self._scratch = aligned(count * nbytes)
        records = self._scratch[: count * nbytes].reshape(count, nbytes)
        records[:] = 0
        return records

    @contextmanager
    def reading(self) -> Iterator[ReadQueue]:
        """Lend a queue for reads."""
        try:
            queue = self._queues.pop()
        except IndexError:
            queue = ReadQueue()
        try:
            yield queue
        finally:
            self._queues.append(queue)

    def read_ahead(self, reading: Callable[[], None]) -> None:
        """Have a thread read what will be asked for, unless it is behind."""

        def read() -> None:
            try:
                # Whoever asks for the rows hears of it.
                with suppress(StratagemError):
                    reading()
            finally:
                self._announced.release()

        if self._announced.acquire(blocking=False):
            self._reader.submit(read)

    @property
    def failure(self) -> str:
        """Why the disk is used no more; empty while it is."""
        return self._failure.message if self._failure else ""

    def require(self) -> None:
        """Check that the disk has not failed.

        Raises:
            DataLossError: It has.
        """
        if self._failure is not None:
            raise self._failure

    def failed(self, name: str, what: str, why: str | None) -> StratagemError:
        """Refuse everything from now on, since rows may be lost."""
        self._failure = DataLossError(
            f"the disk of the table files in {self.folder!r} could not {what} rows of {name!r}: "
            f"{why}; no table of this server is read or changed any more. Start the server again "
            "on another disk: it goes on from its log, its backup or a checkpoint",
            variable=name,
        )
        return self._failure

    def make_room(self, store: RowStore, count: int) -> None:
        """Have free slots for so many rows of a table; the lock is held."""
        while (lacking := count - store.free) > 0:
            room = (self.budget - self.resident_bytes) // store.slot_bytes
            if room < lacking:
                for other in self.stores:
                    if other is not store:
                        other.shrink()
                room = (self.budget - self.resident_bytes) // store.slot_bytes
            if room > 0:
                store.resize(store.slots + min(room, max(lacking, store.slots // 4)))
            elif not self._evict(lacking * store.slot_bytes):
                # A single row may be larger than the budget.
                store.resize(store.slots + lacking)

    def _evict(self, nbytes: int) -> bool:
        """Take the coldest rows of at least so many bytes out of memory; return whether any was."""
        nbytes = max(nbytes, min(self.budget // _SHARE, _MOST_EVICTED))
        part = _LOOKED_AT * nbytes / max(1, self.resident_bytes)
        looked_at = [(store, store.looked_at(part)) for store in self.stores]
        sizes = np.zeros(MOST_HEAT + 1, np.int64)
        for store, span in looked_at:
            sizes += np.bincount(store.heat[span], minlength=len(sizes)) * store.slot_bytes
        # Slots without rows.
        sizes[0] = 0
        total = np.cumsum(sizes)
        # All that is colder leaves, and of what is equally cold as much as is needed.
        limit = min(int(np.searchsorted(total, nbytes)), MOST_HEAT)
        left = nbytes - int(total[limit] - sizes[limit])
        evicted = False
        for store, span in looked_at:
            heat = store.heat[span]
            equal = np.flatnonzero(heat == limit)[: max(0, -(-left // store.slot_bytes))]
            left -= len(equal) * store.slot_bytes
            # Of 0, 255 would be left.
            colder = np.flatnonzero(heat - np.uint8(1) < limit - 1)
            # Without this, what was hot once would stay for ever.
            if limit > 1:
                heat -= heat >> 1
            if len(colder) + len(equal):
                store.evict((np.concatenate((colder, equal)) + span.start).astype(np.int32))
                evicted = True
        return evicted
