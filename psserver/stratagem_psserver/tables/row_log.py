"""Records of a table's rows on a disk: a log in segments, the emptiest of which are taken back."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stratagem_psserver.tables.direct_file import (
    PAGE,
    READ_BYTES,
    Bytes,
    DirectFile,
    Integers,
    ReadQueue,
    aligned,
)

Wholes = npt.NDArray[np.void]
Words = npt.NDArray[np.uint64]

# Records have a checksum and the number of their row before the numbers of the row.
_HEAD = 16

# What is written, and compacted, at once.
_SEGMENT_BYTES = 1 << 18

# A segment has at least so many rows of values, so that their state fits, too.
_LEAST_ROWS = 64

# Where fewer pages than these lie between two records, one read brings both.
_GAP = 3

# Segments beyond those of the records that are to come: what is written to now is partly filled,
# and a new layout begins another; and compaction writes before it frees.
_SPARE = 3

# Segments take at most so many times the bytes of their live records, besides a few of them.
_MOST_SPACE, _FEW = 2, 4

# Odd numbers to multiply the words of a record with. Each change of one word changes the sum.
_FACTORS = np.random.default_rng(50).integers(2**62, 2**63, 4096, np.uint64) * 2 + 1
_BEGIN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(eq=False)
class Column:
    """The numbers of one kind that each row has: its value, or one slot.

    Attributes:
        row_bytes: The bytes of a row.
        begun: Returns the numbers of given rows that were never written, as one element for each.
    """

    row_bytes: int
    begun: Callable[[Integers], Wholes]


class Layout:
    """Where the columns are within a record.

    Args:
        columns: The columns.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.places, end = dict[Column, int](), _HEAD
        for column in columns:
            self.places[column] = end
            end += -(-column.row_bytes // 8) * 8
        self.record_bytes = end

    def fields(self, records: Bytes, column: Column) -> Wholes:
        """Return the numbers of a column within contiguous records, in the same memory."""
        place, step = self.places[column], self.record_bytes
        dtype = np.dtype((np.void, column.row_bytes))
        return np.ndarray((len(records),), dtype, records, place, (step,))


class Wanted(NamedTuple):
    """Records that are to be read, and how the log was when that was said.

    Attributes:
        rows: The numbers of their rows.
        addresses: Their addresses.
        generations: Those of their segments.
        layouts: The layouts, each with the places of its records among `rows`.
    """

    rows: Integers
    addresses: Integers
    generations: Words
    layouts: Sequence[tuple[Layout, Integers]]


class Records(NamedTuple):
    """Records that were read.

    Attributes:
        wanted: What was to be read.
        parts: The records by layout, each with their places among `wanted.rows`.
        are_right: A mask of those that are what was once written there.
    """

    wanted: Wanted
    parts: Sequence[tuple[Layout, Integers, Bytes]]
    are_right: npt.NDArray[np.bool_]

    def column(self, column: Column) -> Wholes:
        """Return the numbers of a column, also where it is newer than the record."""
        values = np.empty(len(self.wanted.rows), (np.void, column.row_bytes))
        for layout, places, records in self.parts:
            if column in layout.places:
                values[places] = layout.fields(records, column)
            else:
                values[places] = column.begun(self.wanted.rows[places])
        return values


class RowLog:
    """The log; callers hold the lock of the disk, except to `read`.

    Args:
        folder: The folder that decides on which disk it is.
        columns: The columns of the first records.

    Attributes:
        live_bytes: Bytes of the records that are still needed.
        written_bytes: Bytes that were written.
        read_bytes: Bytes that were read.
        reads: Reads of neighbouring pages.
        read_seconds: How long they took, those at once counting once.
    """

    def __init__(self, folder: str, columns: Sequence[Column]) -> None:
        self.layout = Layout(columns)
        rows_bytes = _LEAST_ROWS * self.layout.record_bytes
        self.segment_bytes = max(_SEGMENT_BYTES, -(-rows_bytes // PAGE) * PAGE)
        # The most records of a segment. Later ones have more columns, and are rarely shorter.
        self._stride = self.segment_bytes // self.layout.record_bytes
        self._file = DirectFile(folder)
        self._layouts, self._number = [self.layout], 0
        # By segment: its layout, how many of its records live, and the number of its present use,
        # so that what an earlier use has left there is never taken for a record of this one.
        self._layout_of = np.zeros(0, np.int16)
        self._live = np.zeros(0, np.int32)
        self._generations = np.zeros(0, np.uint64)
        self._generation = 0
        self._is_free = np.zeros(0, np.bool_)
        self._free = list[int]()
        self._active, self._filled = -1, 0
        # The last page of the active segment, as far as it is written.
        self._tail = np.zeros(0, np.uint8)
        self._staging = aligned(self.segment_bytes)
        self.live_bytes = self.written_bytes = self.read_bytes = self.reads = 0
        self.read_seconds = 0.0

    @property
    def file_bytes(self) -> int:
        return self._file.nbytes

    @property
    def _per_segment(self) -> int:
        return min(self._stride, self.segment_bytes // self.layout.record_bytes)

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Have the next records have other columns.

        Raises:
            OSError: They are too long; nothing has changed.
        """
        layout = Layout(columns)
        if layout.record_bytes > self.segment_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        self._close_segment()
        self.layout = layout
        used = set(np.unique(self._layout_of[~self._is_free]).tolist())
        self._number = next(number for number in count() if number not in used)
        self._layouts[self._number : self._number + 1] = [self.layout]

    def reserve(self, more: int) -> None:
        """Take room on the disk for so many more records, which `append` then has.

        Raises:
            OSError: There is none; nothing has changed.
        """
        needed = -(-more // self._per_segment) + _SPARE - len(self._free)
        if needed <= 0:
            return
        total = len(self._live)
        try:
            self._grow(total + max(needed, total // 8))
        except OSError:
            self._grow(total + needed)

    def _grow(self, segments: int) -> None:
        before = len(self._live)
        if segments * self._stride >= 2**31 - 2:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        self._file.grow(segments * self.segment_bytes)
        self._free.extend(range(before, segments))
        more = segments - before
        self._layout_of = np.concatenate((self._layout_of, np.zeros(more, np.int16)))
        self._live = np.concatenate((self._live, np.zeros(more, np.int32)))
        self._generations = np.concatenate((self._generations, np.zeros(more, np.uint64)))
        self._is_free = np.concatenate((self._is_free, np.ones(more, np.bool_)))

    def append(self, rows: Integers, records: Bytes) -> Integers:
        """Write records of the present layout, and return their addresses.

        Args:
            rows: The numbers of the rows.
            records: A matrix with a record for each, whose heads this fills.

        Raises:
            OSError: The disk could not write.
        """
        addresses = np.empty(len(rows), np.int64)
        begin = 0
        try:
            while begin < len(rows):
                if self._active < 0 or self._filled == self._per_segment:
                    self._begin_segment()
                stop = min(len(rows), begin + self._per_segment - self._filled)
                first = self._active * self._stride + self._filled
                some = addresses[begin:stop] = np.arange(first, first + stop - begin)
                self._fill_heads(rows[begin:stop], some, records[begin:stop])
                self._write(records[begin:stop])
                begin = stop
        except OSError:
            self.forget(addresses[:begin])
            raise
        return addresses

    def _begin_segment(self) -> None:
        if not self._free:
            self._grow(len(self._live) + 1)
        self._close_segment()
        self._active, self._filled = self._free.pop(), 0
        self._is_free[self._active] = False
        self._generation += 1
        self._generations[self._active] = self._generation
        self._layout_of[self._active] = self._number
        self._tail = self._tail[:0]

    def _close_segment(self) -> None:
        if self._active >= 0 and not self._live[self._active]:
            self._release(np.array([self._active]))
        self._active = -1

    def _fill_heads(self, rows: Integers, addresses: Integers, records: Bytes) -> None:
        words = records.view(np.uint64)
        words[:, 1] = rows
        words[:, 0] = _sums(words, addresses, self._generations[[self._active]])

    def _write(self, records: Bytes) -> None:
        kept, size = len(self._tail), records.size
        end = kept + size
        whole = -(-end // PAGE) * PAGE
        self._staging[:kept] = self._tail
        self._staging[kept:end] = records.reshape(-1)
        self._staging[end:whole] = 0
        offset = self._filled * self.layout.record_bytes - kept
        place = self._active * self.segment_bytes + offset
        self._file.write(place, self._staging[:whole])
        self._tail = self._staging[end // PAGE * PAGE : end].copy()
        self._filled += len(records)
        self._live[self._active] += len(records)
        self.live_bytes += size
        self.written_bytes += whole

    def forget(self, addresses: Integers) -> None:
        """Note that records are not needed any more."""
        if not len(addresses):
            return
        segments = addresses // self._stride
        np.subtract.at(self._live, segments, 1)
        sizes = np.array([each.record_bytes for each in self._layouts])
        self.live_bytes -= int(sizes[self._layout_of[segments]].sum())
        emptied = np.unique(segments[self._live[segments] == 0])
        self._release(emptied[emptied != self._active])

    def _release(self, segments: Integers) -> None:
        self._is_free[segments] = True
        self._free.extend(segments.tolist())

    def wanted(self, rows: Integers, addresses: Integers) -> Wanted:
        """Return records that are to be read, in ascending order of their addresses."""
        order = np.argsort(addresses)
        rows, addresses = rows[order], addresses[order]
        segments = addresses // self._stride
        numbers = self._layout_of[segments]
        layouts = [
            (self._layouts[number], np.flatnonzero(numbers == number))
            for number in np.unique(numbers).tolist()
        ]
        return Wanted(rows, addresses, self._generations[segments], layouts)

    def are_unmoved(self, wanted: Wanted) -> npt.NDArray[np.bool_]:
        """Return a mask of the records whose segments are still in the same use."""
        same: npt.NDArray[np.bool_] = (
            self._generations[wanted.addresses // self._stride] == wanted.generations
        )
        return same

    def read(self, wanted: Wanted, queue: ReadQueue) -> Records:
        """Read records; without the lock.

        Raises:
            OSError: The disk could not read.
        """
        right = np.zeros(len(wanted.rows), np.bool_)
        parts = list[tuple[Layout, Integers, Bytes]]()
        for layout, places in wanted.layouts:
            addresses = wanted.addresses[places]
            offsets = addresses // self._stride * self.segment_bytes
            offsets += addresses % self._stride * layout.record_bytes
            records = np.empty((len(places), layout.record_bytes), np.uint8)
            self._read(queue, offsets, records)
            words = records.view(np.uint64)
            is_right = words[:, 0] == _sums(words, addresses, wanted.generations[places])
            right[places] = is_right & (words[:, 1] == wanted.rows[places].view(np.uint64))
            parts.append((layout, places, records))
        return Records(wanted, parts, right)

    def _read(self, queue: ReadQueue, offsets: Integers, into: Bytes) -> None:
        """Read records at ascending offsets."""
        size = into.shape[1]
        wholes = into.reshape(-1).view((np.void, size))
        for part, begins, sizes in _runs(offsets, size):
            data = self._read_spans(queue, begins, sizes)
            # Where each record is in what was read.
            run = np.searchsorted(begins, offsets[part], "right") - 1
            places = offsets[part] - begins[run] + (np.cumsum(sizes) - sizes)[run]
            every = np.ndarray(
                ((len(data) - size) // 8 + 1,), np.dtype((np.void, size)), data, 0, (8,)
            )
            wholes[part] = every[places // 8]

    def _read_spans(self, queue: ReadQueue, begins: Integers, sizes: Integers) -> Bytes:
        began = time.perf_counter()
        data = queue.read(self._file, begins, sizes)
        self.read_seconds += time.perf_counter() - began
        self.reads += len(begins)
        self.read_bytes += len(data)
        return data

    @property
    def is_sparse(self) -> bool:
        """Whether so few records live that compaction has to give room back."""
        used = (len(self._live) - len(self._free)) * self.segment_bytes
        return used > _MOST_SPACE * self.live_bytes + _FEW * self.segment_bytes

    def emptiest(self) -> int:
        """Return the segment that has the fewest bytes of live records."""
        sizes = np.array([each.record_bytes for each in self._layouts])
        live = self._live * sizes[self._layout_of]
        live[self._is_free] = 2**31 - 1
        if self._active >= 0:
            live[self._active] = 2**31 - 1
        return int(live.argmin())

    def live_of(self, segment: int) -> int:
        """Return how many records of a segment live."""
        return int(self._live[segment])

    def read_segment(self, segment: int, queue: ReadQueue) -> Records:
        """Read all records of a segment, live or not, with the rows that they say they are of.

        Raises:
            OSError: The disk could not read.
        """
        layout = self._layouts[self._layout_of[segment]]
        begin = np.array([segment * self.segment_bytes])
        data = self._read_spans(queue, begin, np.array([self.segment_bytes]))
        size = layout.record_bytes
        count = min(self._stride, self.segment_bytes // size)
        records = data[: count * size].copy().reshape(count, size)
        words, places = records.view(np.uint64), np.arange(count)
        addresses = segment * self._stride + places
        generations = self._generations[np.full(count, segment)]
        right = words[:, 0] == _sums(words, addresses, generations)
        rows = words[:, 1].view(np.int64)
        return Records(
            Wanted(rows, addresses, generations, [(layout, places)]),
            [(layout, places, records)],
            right,
        )


def _sums(words: Words, addresses: Integers, generations: Words) -> Words:
    """Return the checksums of records, which depend on where and when they were written."""
    width = words.shape[1] - 1
    sums = np.full(len(words), _BEGIN)
    for begin in range(0, width, len(_FACTORS)):
        some = words[:, 1 + begin : 1 + min(width, begin + len(_FACTORS))]
        sums = sums * _FACTORS[0] + some @ _FACTORS[: some.shape[1]]
    sums += addresses.view(np.uint64) * _FACTORS[1] + generations * _FACTORS[2]
    return sums ^ (sums >> np.uint64(29))


def _runs(offsets: Integers, size: int) -> Iterator[tuple[slice, Integers, Integers]]:
    """Yield records at ascending offsets, with the spans of whole pages in which they are.

    No span of one part overlaps another of it, and a part has about `READ_BYTES` at most.
    """
    begins = offsets // PAGE * PAGE
    ends = -((offsets + size) // -PAGE) * PAGE
    is_first = np.ones(len(offsets), np.bool_)
    np.greater(begins[1:], ends[:-1] + _GAP * PAGE, out=is_first[1:])
    more = np.where(is_first, ends - begins, np.diff(ends, prepend=0))
    total = np.cumsum(more)
    begin = 0
    while begin < len(offsets):
        before = total[begin] - more[begin]
        stop = max(begin + 1, int(np.searchsorted(total, before + READ_BYTES, "right")))
        part = slice(begin, stop)
        firsts = is_first[part].copy()
        firsts[0] = True
        starts = np.flatnonzero(firsts)
        lasts = np.append(starts[1:], stop - begin) - 1
        yield part, begins[part][starts], ends[part][lasts] - begins[part][starts]
        begin = stop
