"""Rows of tables, of which a part is in memory and all others are on a disk."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from stratagem_proto.errors import DataLossError, ResourceExhaustedError
from stratagem_psserver.tables.direct_file import PRIVATE, Integers
from stratagem_psserver.tables.row_log import Column, Records, RowLog, Wanted, Wholes
from stratagem_psserver.tables.table_disk import MOST_HEAT, TableDisk

# A row has this heat once it is in memory.
_FIRST_HEAT = 4

# Bytes of rows for which the lock is held at a time; what is copied for them is no larger.
_AT_ONCE_BYTES = 1 << 20

ON_DISK_BYTES = 4
"""Bytes of memory for each row that say where it is."""

# A row in memory also takes its number, the address of its record, its heat, and room for its slot
# among the free ones.
_SLOT_BYTES = 13

# Where a row is that was never written; one on the disk is `_ON_DISK` less its address.
_NOWHERE, _ON_DISK = -1, -2

_Slots = npt.NDArray[np.int32]
_Act = Callable[[Integers, _Slots], None]


class _Memory:
    """The rows of one column that are in memory, by slot."""

    def __init__(self, row_bytes: int) -> None:
        self._dtype = np.dtype((np.void, row_bytes))
        self._map: mmap.mmap | None = None
        self._slots = 0

    @property
    def rows(self) -> Wholes:
        """All rows. Nobody keeps them, since their memory moves."""
        if self._map is None:
            return np.empty(0, self._dtype)
        return np.frombuffer(self._map, self._dtype, self._slots)

    def resize(self, slots: int) -> None:
        """Have so many slots, of which the first keep their rows."""
        nbytes = slots * self._dtype.itemsize
        if not nbytes:
            self._map = None
        elif self._map is None:
            self._map = mmap.mmap(-1, nbytes, PRIVATE)
        else:
            try:
                # The system moves pages, and copies nothing.
                self._map.resize(nbytes)
            except BufferError:
                before, kept = self.rows, min(slots, self._slots)
                self._map = mmap.mmap(-1, nbytes, PRIVATE)
                np.frombuffer(self._map, self._dtype, kept)[:] = before[:kept]
        self._slots = slots


class RowStore:
    """The rows of a table by their numbers; on any thread.

    Nobody has to say beforehand which rows will be used: what is not in memory is read when it is
    asked for. Two threads never change the same rows.

    Args:
        disk: The disk of the server.
        name: The table.
        columns: What each row has.

    Raises:
        ResourceExhaustedError: The disk has no room.
    """

    def __init__(self, disk: TableDisk, name: str, columns: Sequence[Column]) -> None:
        self._disk, self.name = disk, name
        try:
            self.log = RowLog(disk.folder, columns)
        except OSError as error:
            raise self._no_room(error) from error
        # By row.
        self._where = np.zeros(0, np.int32)
        # By slot: the row, the address of its record if it has not changed since, and its heat; 0
        # for a free slot.
        self._row_of, self._home = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.heat = np.zeros(0, np.uint8)
        # The first ones of these are free.
        self._free: _Slots = np.zeros(0, np.int32)
        self.free = 0
        self._dirty = self._pledged = self._hand = 0
        self._memory = {column: _Memory(column.row_bytes) for column in columns}
        # Rows count as asked for when this is read: whoever updates them reads the others, too.
        self._counted = columns[0]
        disk.add(self)

    @property
    def columns(self) -> list[Column]:
        """What each row has."""
        return list(self._memory)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that say where rows are."""
        return self._where.nbytes

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self._memory)

    @property
    def slot_bytes(self) -> int:
        """Bytes of memory of a row that is in memory."""
        return self.row_bytes + _SLOT_BYTES

    @property
    def slots(self) -> int:
        """Rows that there is memory for; `free` of them have none."""
        return len(self._row_of)

    def take(self, column: Column, rows: Integers, into: Wholes) -> None:
        """Copy numbers of rows, which may repeat.

        Args:
            column: Which numbers.
            rows: The rows.
            into: Gets the numbers, as one element for each row.

        Raises:
            DataLossError: The disk has failed.
        """
        is_counted = column is self._counted
        self._disk.counts.lookups += is_counted
        for part in self._parts(len(rows)):
            self._visit(rows[part], partial(self._copy_out, column, into[part]), is_counted)

    def announce(self, rows: Integers) -> None:
        """Have a thread bring rows into memory, unless it is behind with others.

        A quarter of the memory at most is taken, and rows that are not stored are passed over.
        """
        self._disk.read_ahead(partial(self._bring, rows))

    def _bring(self, rows: Integers) -> None:
        most = self._disk.budget // 4 // self.slot_bytes
        with self._disk.lock:
            rows = rows[rows < len(self._where)]
            rows = rows[self._where[rows] <= _ON_DISK][:most]
        for part in self._parts(len(rows)):
            self._visit(rows[part], lambda _, slots: None)

    def put(self, rows: Integers, values: Mapping[Column, Wholes]) -> None:
        """Write numbers of distinct rows; those never written begin with `Column.begun` otherwise.

        The caller has taken the room for them by `reserve`.

        Raises:
            DataLossError: The disk has failed.
        """
        is_whole = len(values) == len(self._memory)
        for part in self._parts(len(rows)):
            some = {column: each[part] for column, each in values.items()}
            with self._disk.lock:
                self._disk.require()
                self._begin(rows[part], is_whole)
                if is_whole:
                    # All are in memory now.
                    self._visit(rows[part], partial(self._copy_in, some))
            if not is_whole:
                self._visit(rows[part], partial(self._copy_in, some))

    def scan(self, column: Column, rows: Integers, into: Wholes) -> Integers:
        """Do as `take`, for rows that nobody has asked for: none of them comes into memory.

        Returns:
            The places of the rows that are not stored, which `into` does not get.
        """
        absent = [np.zeros(0, np.int64)]
        for part in self._parts(len(rows)):
            absent.append(self._scan(column, rows[part], into[part]) + part.start)
        return np.concatenate(absent)

    def _parts(self, count: int) -> Iterator[slice]:
        """Yield spans of rows for which there is memory at once, and much of it is left."""
        most = max(1, min(_AT_ONCE_BYTES, self._disk.budget // 4) // self.slot_bytes)
        for begin in range(0, count, most):
            yield slice(begin, min(count, begin + most))

    def _visit(self, rows: Integers, act: _Act, is_counted: bool = False) -> None:
        """Call `act` with places among rows and their slots, once for each, under the lock."""
        pending, records = np.arange(len(rows)), None
        while True:
            with self._disk.lock:
                self._disk.require()
                if records is not None:
                    self._install(records)
                slots = self._where[rows[pending]]
                is_inside = slots >= 0
                inside = slots[is_inside]
                act(pending[is_inside], inside)
                if records is None and is_counted:
                    self._count(inside, len(rows))
                pending = pending[~is_inside]
                if not len(pending):
                    return
                wanted = self._wanted(np.unique(rows[pending]))
            records = self._read(wanted)

    def _count(self, slots: _Slots, asked: int) -> None:
        self._disk.counts.found += len(slots)
        self._disk.counts.missed += asked - len(slots)
        self.heat[slots] = np.minimum(self.heat[slots], MOST_HEAT - 1) + np.uint8(1)

    def _copy_out(self, column: Column, into: Wholes, places: Integers, slots: _Slots) -> None:
        rows = self._memory[column].rows
        if len(slots) == len(into):
            rows.take(slots, out=into, mode="clip")
        else:
            into[places] = rows[slots]

    def _copy_in(self, values: Mapping[Column, Wholes], places: Integers, slots: _Slots) -> None:
        for column, each in values.items():
            self._memory[column].rows[slots] = each if len(slots) == len(each) else each[places]
        homes = self._home[slots]
        self._home[slots] = -1
        changed = homes[homes >= 0].astype(np.int64)
        self._dirty += len(changed)
        self.log.forget(changed)

    def _begin(self, rows: Integers, is_whole: bool) -> None:
        """Have slots for rows that need not be read; the lock is held."""
        while True:
            where = self._where[rows]
            absent = rows[where < 0 if is_whole else where == _NOWHERE]
            if self.free >= len(absent):
                break
            self._disk.make_room(self, len(absent))
        if not len(absent):
            return
        where = self._where[absent]
        self.log.forget(_ON_DISK - where[where <= _ON_DISK].astype(np.int64))
        slots = self._occupy(absent, -1)
        self._dirty += len(absent)
        if not is_whole:
            for column, memory in self._memory.items():
                memory.rows[slots] = column.begun(absent)

    def _occupy(self, rows: Integers, homes: Integers | int) -> _Slots:
        """Give rows the next free slots."""
        left = self.free - len(rows)
        slots, self.free = self._free[left : self.free].copy(), left
        self._row_of[slots], self._home[slots] = rows, homes
        self.heat[slots] = _FIRST_HEAT
        self._where[rows] = slots
        return slots

    def _wanted(self, rows: Integers) -> Wanted:
        """Return the records of distinct rows on the disk; the lock is held."""
        where = self._where[rows].astype(np.int64)
        if (where == _NOWHERE).any():
            row = int(rows[where == _NOWHERE][0])
            raise DataLossError(f"row {row} of {self.name!r} was never stored", variable=self.name)
        return self.log.wanted(rows, _ON_DISK - where)

    def _read(self, wanted: Wanted) -> Records:
        try:
            with self._disk.reading() as queue:
                return self.log.read(wanted, queue)
        except OSError as error:
            raise self._disk.failed(self.name, "read", error.strerror) from error

    def _are_there(self, records: Records) -> npt.NDArray[np.bool_]:
        """Return a mask of records that are what the rows still are; the lock is held.

        Raises:
            DataLossError: One of them is not what was written.
        """
        wanted = records.wanted
        there: npt.NDArray[np.bool_] = self._where[wanted.rows] == _ON_DISK - wanted.addresses
        there &= self.log.are_unmoved(wanted)
        if not (records.are_right | ~there).all():
            raise self._disk.failed(self.name, "read", "what it returned is not what was written")
        return there

    def _install(self, records: Records) -> None:
        """Have rows in memory that were read; the lock is held."""
        # Before it is known where they are, as this may move them.
        self._disk.make_room(self, len(records.wanted.rows))
        there = self._are_there(records)
        slots = self._occupy(records.wanted.rows[there], records.wanted.addresses[there])
        for column, memory in self._memory.items():
            memory.rows[slots] = records.column(column)[there]

    def _scan(self, column: Column, rows: Integers, into: Wholes) -> Integers:
        pending, absent = np.arange(len(rows)), np.zeros(0, np.int64)
        while True:
            with self._disk.lock:
                self._disk.require()
                where = self._where[rows[pending]]
                if len(inside := pending[where >= 0]):
                    into[inside] = self._memory[column].rows[where[where >= 0]]
                absent = np.append(absent, pending[where == _NOWHERE])
                pending = pending[where <= _ON_DISK]
                if not len(pending):
                    return absent
                distinct, places = np.unique(rows[pending], return_inverse=True)
                wanted = self._wanted(distinct)
            records = self._read(wanted)
            with self._disk.lock:
                there = self._are_there(records)
            # They are by address now.
            by_row = np.argsort(wanted.rows)
            values, is_there = records.column(column)[by_row][places], there[by_row][places]
            into[pending[is_there]] = values[is_there]
            pending = pending[~is_there]

    def reserve(self, count: int) -> None:
        """Take room on the disk for changes of so many rows, until the next such call.

        Raises:
            ResourceExhaustedError: There is none; nothing has changed.
        """
        with self._disk.lock:
            self._disk.require()
            try:
                self.log.reserve(self._dirty + count)
            except OSError as error:
                raise self._no_room(error) from error
            self._pledged = count

    def _no_room(self, error: OSError) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"rows of {self.name!r} need room in {self._disk.folder!r}, which the disk refuses: "
            f"{error.strerror}; make room there, use more servers, give another --table-folder, "
            "or limit the table's rows",
            variable=self.name,
        )

    def grow(self, rows: int) -> None:
        """Have numbers for so many rows."""
        with self._disk.lock:
            if rows > (before := len(self._where)):
                where = np.empty(rows, np.int32)
                where[:before], where[before:] = self._where, _NOWHERE
                self._where = where

    def drop(self, first: int) -> None:
        """Forget all rows from a number on."""
        with self._disk.lock:
            where = self._where[first:]
            slots = where[where >= 0]
            homes = self._home[slots]
            self._dirty -= int(np.count_nonzero(homes < 0))
            gone = _ON_DISK - where[where <= _ON_DISK].astype(np.int64)
            self.log.forget(np.concatenate((homes[homes >= 0], gone)))
            where[:] = _NOWHERE
            self._vacate(slots)

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Have other columns; rows begin with `Column.begun` of those that they had not.

        Raises:
            ResourceExhaustedError: The disk has no room; nothing has changed.
        """
        wider = sum(column.row_bytes for column in columns) // max(1, self.row_bytes) + 1
        self.reserve(self._pledged * wider)
        # All rows leave memory, some at a time, and what is announced may come in between. They
        # come back with the new columns.
        while not self._set_columns(columns):
            with self._disk.lock:
                self.evict(np.flatnonzero(self.heat)[: _AT_ONCE_BYTES // 8].astype(np.int32))

    def _set_columns(self, columns: Sequence[Column]) -> bool:
        """Have other columns if no row is in memory; return whether that was so."""
        with self._disk.lock:
            self._disk.require()
            if self.heat.any():
                return False
            try:
                self.log.set_columns(columns)
            except OSError as error:
                raise self._no_room(error) from error
            self.free = 0
            self.resize(0)
            self._memory = {column: _Memory(column.row_bytes) for column in columns}
        return True

    def resize(self, slots: int) -> None:
        """Have memory for so many rows; the lock is held, and what is lost has no rows."""
        before, kept = self.slots, min(slots, self.slots)
        for memory in self._memory.values():
            memory.resize(slots)
        more = slots - kept
        self._row_of = np.concatenate((self._row_of[:kept], np.full(more, -1, np.int32)))
        self._home = np.concatenate((self._home[:kept], np.full(more, -1, np.int32)))
        self.heat = np.concatenate((self.heat[:kept], np.zeros(more, np.uint8)))
        free = np.zeros(slots, np.int32)
        added = max(0, slots - before)
        # The last one is taken first.
        free[:added] = np.arange(before, before + added)[::-1]
        free[added : added + self.free] = self._free[: self.free]
        self._free, self.free = free, added + self.free

    def shrink(self) -> None:
        """Give back the memory of free slots; the lock is held."""
        slots = self.slots - self.free
        if not self.free:
            return
        holes = self._free[: self.free]
        holes = holes[holes < slots]
        moving = (np.flatnonzero(self.heat[slots:]) + slots).astype(np.int32)
        for memory in self._memory.values():
            rows = memory.rows
            rows[holes] = rows[moving]
            del rows
        for each in (self._row_of, self._home, self.heat):
            each[holes] = each[moving]
        self._where[self._row_of[holes]] = holes
        self.free = 0
        self.resize(slots)

    def looked_at(self, part: float) -> slice:
        """Return a part of the slots, among which the coldest rows are to be found."""
        count = min(self.slots, math.ceil(part * self.slots))
        begin = max(0, min(self._hand, self.slots - count))
        self._hand = begin + -(-count // 2) if begin + count < self.slots else 0
        return slice(begin, begin + count)

    def evict(self, slots: _Slots) -> None:
        """Take rows out of memory; the lock is held.

        Raises:
            DataLossError: The disk could not write.
        """
        slots = slots[np.argsort(self._row_of[slots])]
        at_once = max(1, _AT_ONCE_BYTES // self.log.layout.record_bytes)
        try:
            for begin in range(0, len(slots), at_once):
                self._evict_some(slots[begin : begin + at_once])
                self._compact()
        except OSError as error:
            raise self._disk.failed(self.name, "write", error.strerror) from error

    def _evict_some(self, slots: _Slots) -> None:
        rows = self._row_of[slots].astype(np.int64)
        homes = self._home[slots].astype(np.int64)
        changed = np.flatnonzero(homes < 0)
        if len(changed):
            layout = self.log.layout
            records = self._disk.scratch(len(changed), layout.record_bytes)
            for column, memory in self._memory.items():
                layout.fields(records, column)[:] = memory.rows[slots[changed]]
            homes[changed] = self.log.append(rows[changed], records)
            self._dirty -= len(changed)
        self._where[rows] = _ON_DISK - homes
        self._vacate(slots)
        self._disk.counts.evicted_bytes += len(slots) * self.row_bytes
        self._disk.counts.changed_bytes += len(changed) * self.row_bytes

    def _vacate(self, slots: _Slots) -> None:
        self._row_of[slots] = self._home[slots] = -1
        self.heat[slots] = 0
        self._free[self.free : self.free + len(slots)] = slots
        self.free += len(slots)

    def _compact(self) -> None:
        """Take back the emptiest segments, at most as many as were just filled, and some."""
        for _ in range(2 * _AT_ONCE_BYTES // self.log.segment_bytes + 2):
            if not self.log.is_sparse:
                return
            segment = self.log.emptiest()
            with self._disk.reading() as queue:
                records = self.log.read_segment(segment, queue)
            self._move(records, self.log.live_of(segment))

    def _move(self, records: Records, live: int) -> None:
        """Write the live records of a segment elsewhere, or only in memory if they are there."""
        rows, addresses, *_ = records.wanted
        valid = np.flatnonzero((rows >= 0) & (rows < len(self._where)))
        where = self._where[rows[valid]]
        cold = valid[where == _ON_DISK - addresses[valid]]
        inside = where >= 0
        slots, place = where[inside], addresses[valid[inside]]
        is_home = self._home[slots] == place
        if len(cold) + np.count_nonzero(is_home) != live or not records.are_right[cold].all():
            raise self._disk.failed(self.name, "read", "what it returned is not what was written")
        self._home[slots[is_home]] = -1
        self._dirty += int(np.count_nonzero(is_home))
        if len(cold):
            cold = cold[np.argsort(rows[cold])]
            moved = self._disk.scratch(len(cold), self.log.layout.record_bytes)
            for column in self._memory:
                self.log.layout.fields(moved, column)[:] = records.column(column)[cold]
            self._where[rows[cold]] = _ON_DISK - self.log.append(rows[cold], moved)
        self.log.forget(np.concatenate((place[is_home], addresses[cold])))
