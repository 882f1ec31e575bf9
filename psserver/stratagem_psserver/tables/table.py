"""A table: the keys of its stored rows, and arenas with their numbers at the same positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.key_index import KeyIndex, PositionArray
from stratagem_proto.programs.random_rows import round_to_nearest, row_nbytes
from stratagem_proto.rows import Wholes, put, set_rows
from stratagem_proto.v1.checkpoint_pb2 import TableHistory
from stratagem_proto.v1.variable_pb2 import TableStatistics, VariableSpec
from stratagem_psserver.limits import VariableMemoryLimit, allocating
from stratagem_psserver.tables.arena import Arena, FoundRows, TableSnapshot
from stratagem_psserver.tables.direct_file import Integers
from stratagem_psserver.tables.retention import Admission, IdleTime, Retention, oldest, rarest
from stratagem_psserver.tables.row_store import ON_DISK_BYTES, RowStore
from stratagem_psserver.tables.table_disk import TableDisk

FIRST_ROWS = 64
_ADVICE = "use more servers, or a table with a limit"
_NONE = torch.empty(0, dtype=torch.int64)
_MOST_COUNTED = 2**31 - 3

# The largest key, and the latest time, of which half of the bytes would be zeros.
_MOST_SHORT = 2**31 - 1

# Rows that get their first state of an optimizer at once.
_BEGUN_AT_ONCE = 1 << 16

VALUE_CHANGED, KEY_CHANGED = 1, 3
"""What a publication has to know of a row: a row with another key has other values, too."""


class Table:
    """The written rows of one variable and of its slots.

    Callers hold the variable's lock. A write consists of `find`, `make_room` and `store`, so that
    it can fail only before any row has changed.

    Args:
        spec: The description of the variable.
        disk: The disk for the rows that the server has no memory for; None to keep all in memory.

    Attributes:
        value: The arena of the variable itself.
        arenas: The arenas of the variable and of each slot.
        capacity: How many rows there is memory for.
        is_on_disk: Whether the numbers of rows are in a store on a disk, `on_disk`.
    """

    def __init__(self, spec: VariableSpec, disk: TableDisk | None = None) -> None:
        self.name = spec.name
        self.is_on_disk = disk is not None and row_nbytes(spec) > 0
        self.is_dynamic = spec.table.HasField("dynamic")
        self._retention = Retention.from_spec(spec.table)
        self.admission = Admission(self._retention.admission_count, self._retention.count_bytes)
        self._vocabulary = 0 if self.is_dynamic else spec.tensor.shape[0]
        self._index: KeyIndex | PositionArray = KeyIndex()
        self._rows, self.capacity, self._clock, self._swept = 0, 0, 0, 0
        self._evicted, self._dropped = 0, 0
        is_short = 0 < self._vocabulary <= _MOST_SHORT
        self._keys = torch.empty(0, dtype=torch.int32 if is_short else torch.int64)
        self._touched = torch.empty(0, dtype=torch.int32)
        self._counts = torch.empty(0, dtype=torch.int32)
        self._aged = 0
        self.idle_time = IdleTime(self._retention.evict_after_milliseconds)
        self.value = Arena(self, spec)
        self.arenas: list[Arena] = [self.value]
        if disk is not None and self.is_on_disk:
            self.on_disk = RowStore(disk, spec.name, [self.value.stored])
        self._snapshots: list[TableSnapshot] = []
        # What has changed at each position since the last publication; None before the first.
        self._changed: torch.Tensor | None = None
        self._resize(min(FIRST_ROWS, self.most_rows()))

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Bytes of all memory: the capacity for rows, the index, and the counts of admission."""
        arrays = (*self.marks, *(each.storage for each in self.arenas))
        taken = sum(array.nbytes for array in arrays) + (
            self.on_disk.nbytes if self.is_on_disk else 0
        )
        if self._changed is not None:
            taken += self._changed.nbytes
        return taken + self._index.nbytes + self.admission.nbytes

    @property
    def marks(self) -> list[torch.Tensor]:
        """Vectors of the rows' keys and of the times of their last writes, int32 or int64.

        Where rows are evicted by it, also of how often each was written.
        """
        counts = [self._counts] if self._retention.counts_writes else []
        return [self._keys, self._touched, *counts]

    def statistics(self) -> TableStatistics:
        return TableStatistics(
            rows=self._rows,
            bytes=self.nbytes,
            waiting_keys=self.admission.waiting,
            evicted_rows=self._evicted,
            dropped_gradients=self._dropped,
        )

    def most_rows(self, more_bytes: int = 0) -> int:
        """Return the most rows that the limits allow, if each has so many more bytes of state."""
        return self._retention.most_rows(self._row_bytes + more_bytes)

    @property
    def _mark_bytes(self) -> int:
        return sum(mark.itemsize for mark in self.marks)

    @property
    def _row_bytes(self) -> int:
        return sum(arena.row_bytes for arena in self.arenas) + self._mark_bytes

    def memory_for(self, row_bytes: int) -> int:
        """Return the memory for so many bytes of state of each row."""
        return 0 if self.is_on_disk else self.capacity * row_bytes

    def check_fit(self, rows: int, more_bytes: int = 0) -> None:
        """Check that so many rows can be stored at once.

        Raises:
            InvalidArgumentError: The limits of the table are too small.
        """
        check_room(self.name, rows, self.most_rows(more_bytes))

    def history(self) -> TableHistory:
        history = TableHistory(
            writes=self._clock,
            swept=self._swept,
            evicted_rows=self._evicted,
            dropped_gradients=self._dropped,
            aged=self._aged,
        )
        self.idle_time.describe(history)
        return history

    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and the times of `marks` of all stored rows, by position."""
        return self._keys[: self._rows], self._touched[: self._rows]

    def snapshot(self, values_only: bool = False) -> TableSnapshot:
        """Return a snapshot of the present marks, and then of the numbers of each arena.

        Args:
            values_only: Whether the keys and the numbers of the value are enough.
        """
        marks, arenas = self.marks, self.arenas
        if values_only:
            marks, arenas = [self._keys], [self.value]
        snapshot = TableSnapshot(self._rows, marks, arenas, self.admission.shared())
        self._snapshots.append(snapshot)
        return snapshot

    def close_snapshot(self, snapshot: TableSnapshot) -> None:
        """Stop copying rows for a snapshot."""
        if snapshot in self._snapshots:
            self._snapshots.remove(snapshot)

    def publish(self) -> torch.Tensor | None:
        """Return what has changed since the last call, and begin anew; None at the first one.

        Returns:
            A byte for each position that has a row, of `VALUE_CHANGED` and `KEY_CHANGED`.
        """
        changed, self._changed = self._changed, torch.zeros(self.capacity, dtype=torch.uint8)
        return None if changed is None else changed[: self._rows]

    def forget_changes(self) -> None:
        """Have the next `publish` return None, as where nobody has noted what has changed."""
        self._changed = None

    def _keep(self, positions: torch.Tensor, what: int = VALUE_CHANGED) -> None:
        """Note that rows are about to change; no row and no key changes otherwise."""
        for snapshot in list(self._snapshots):
            snapshot.keep(positions)
        if self._changed is not None:
            places = positions.numpy()
            self._changed.numpy()[places] |= what

    def adopt(
        self,
        arenas: Sequence[Arena],
        marks: Sequence[torch.Tensor],
        history: TableHistory,
    ) -> None:
        """Replace all rows by these; the caller then writes their numbers by `fill`.

        Args:
            arenas: The arenas of slots, besides that of the value.
            marks: The keys of the rows, the times of their last writes, and, if the table has
                them, the counts of their writes.
            history: The clock and the counts of the table.
        """
        self.arenas.extend(arenas)
        self._set_columns()
        self._rows, self._changed = 0, None
        self._have_times_until(max(history.writes, int(marks[1].max()) if len(marks[1]) else 0))
        self._resize(max(len(marks[0]), self.capacity))
        self._rows = len(marks[0])
        for array, mark in zip(self.marks, marks, strict=True):
            array[: self._rows] = mark
        self._clock, self._swept = history.writes, history.swept
        self._evicted, self._dropped = history.evicted_rows, history.dropped_gradients
        self._aged, self.idle_time = history.aged, self.idle_time.restored(history)
        is_array = self._fits_array(self.capacity)
        self._index = PositionArray(self._vocabulary) if is_array else KeyIndex(self._rows)

    def fill(self, start: int, rows: Mapping[Arena, torch.Tensor]) -> None:
        """Write adopted rows, which can be found then.

        Of four million keys in their order, 65,536 at a time took 1.4 s of a processor, and all at
        once 1.7 s; in a random order both took 1.4 s.

        Args:
            start: The position of the first row.
            rows: The numbers for each arena.
        """
        stop = start + len(rows[self.value])
        positions = torch.arange(start, stop)
        # Rows of a checkpoint may have been stored in another dtype.
        stored = {arena: round_to_nearest(each, arena.dtype) for arena, each in rows.items()}
        if self.is_on_disk:
            wholes = {arena: arena.to_wholes(each) for arena, each in stored.items()}
            self.on_disk.reserve(len(positions))
            self.put_on_disk(positions.numpy(), wholes)
        else:
            for arena, each in stored.items():
                arena.storage[start:stop] = each
        self._index.insert(self._keys[start:stop], positions)

    def fit(self) -> None:
        """Evict the oldest rows if there are more than the limits allow."""
        most = self.most_rows()
        if most < self._rows:
            self._evict(self._first_to_go(self._rows - most))
        if most < self.capacity:
            self._resize(most)

    def find(self, keys: torch.Tensor) -> FoundRows:
        """Return the positions of keys, which may repeat."""
        return FoundRows(keys, self._index.find(keys, self._keys))

    def announce(self, keys: torch.Tensor) -> None:
        """Have rows of a table on a disk in memory by the time that somebody asks for them."""
        positions = self.find(keys).positions.numpy()
        self.on_disk.announce(positions[positions >= 0])

    def make_room(self, found: FoundRows, memory_limit: VariableMemoryLimit) -> None:
        """Take the memory for storing distinct keys, without changing a row.

        Args:
            found: The keys.
            memory_limit: The limit of the memory of all variables.

        Raises:
            ResourceExhaustedError: There is not enough memory.
        """
        needed = self._rows + found.num_new
        if needed > self.capacity:
            needed = min(needed, self.most_rows())
        if needed > self.capacity:
            self._grow(needed, memory_limit)
        else:
            memory_limit.take(self.name, self._index.more_nbytes(needed - self._rows))
        with allocating(_ADVICE):
            self._index.reserve(needed - self._rows, self._keys)
        if self.is_on_disk:
            # Of keys that are found, a write may evict some, and store them anew.
            self.on_disk.reserve(2 * len(found.keys) + self._most_moved(found))

    def _most_moved(self, found: FoundRows) -> int:
        """Return how many rows a write of keys may move to other positions, at most."""
        if self.is_plain_write(found):
            return 0
        retention, clock = self._retention, self._clock + 1
        new, most = found.num_new, self.most_rows()
        moved = retention.eviction(self._rows, new, most)
        if self._is_sweep_due(clock):
            moved += int(self._unwritten_since(clock - retention.evict_after).count_nonzero())
        return min(moved, self._rows)

    def _grow(self, needed: int, memory_limit: VariableMemoryLimit) -> None:
        wanted = max(needed, min(2 * self.capacity, self.most_rows()))
        if not self.is_dynamic:
            wanted = max(needed, min(wanted, self._vocabulary))
        is_array = self._fits_array(wanted)
        try:
            memory_limit.take(self.name, self._growth(wanted, is_array))
        except ResourceExhaustedError:
            # There is no memory for later rows; take what these rows need.
            wanted, is_array = needed, self._has_array
            memory_limit.take(self.name, self._growth(wanted, is_array))
        index = self._index
        if is_array and not self._has_array:
            with allocating(_ADVICE):
                index = PositionArray(self._vocabulary)
                index.insert(self._keys[: self._rows], torch.arange(self._rows))
        self._resize(wanted)
        self._index = index

    @property
    def _has_array(self) -> bool:
        return isinstance(self._index, PositionArray)

    def _fits_array(self, capacity: int) -> bool:
        """Return whether an array of positions takes no more memory than so many rows."""
        array = PositionArray.nbytes_for(self._vocabulary)
        return 0 < array <= capacity * self._row_bytes

    def _growth(self, capacity: int, is_array: bool) -> int:
        """Return the additional bytes of a table with that capacity."""
        rows = capacity - self.capacity
        row_bytes = self._mark_bytes + ON_DISK_BYTES if self.is_on_disk else self._row_bytes
        nbytes = rows * row_bytes - self._index.nbytes
        if is_array:
            return nbytes + PositionArray.nbytes_for(self._vocabulary)
        return nbytes + KeyIndex.nbytes_for(capacity)

    def attach(self, arenas: Sequence[Arena]) -> None:
        """Add slots to all rows; evict the oldest rows if the limits are exceeded."""
        if not self.is_on_disk:
            self._begin_all(arenas)
        self.arenas.extend(arenas)
        try:
            self._set_columns()
            self.fit()
        except ResourceExhaustedError:
            del self.arenas[-len(arenas) :]
            self._set_columns()
            raise

    def _begin_all(self, arenas: Sequence[Arena]) -> None:
        keys = self._keys[: self._rows]
        with allocating(_ADVICE):
            for start in range(0, self._rows, _BEGUN_AT_ONCE):
                some = keys[start : start + _BEGUN_AT_ONCE].long()
                for arena in arenas:
                    arena.storage[start : start + len(some)] = arena.begun(some)

    def detach(self, arena: Arena) -> None:
        """Remove a slot from all rows."""
        self.arenas.remove(arena)
        self._set_columns()

    def _set_columns(self) -> None:
        """Have rows on the disk have the numbers of all arenas."""
        if self.is_on_disk:
            columns = [arena.stored for arena in self.arenas]
            # Snapshots may be of more.
            kept = self.on_disk.columns if self._snapshots else []
            columns += [column for column in kept if column not in columns]
            self.on_disk.set_columns(columns)

    def is_plain_write(self, found: FoundRows) -> bool:
        """Return whether a write of these distinct keys leaves none out and evicts no row."""
        if self._is_sweep_due(self._clock + 1):
            return False
        rows = self._rows + found.num_new
        # The capacity is within the limits.
        fits = rows <= self.capacity or rows <= self.most_rows()
        return fits and (not found.num_new or self.admission.needed == 1)

    def store(self, found: FoundRows, rows: Mapping[Arena, torch.Tensor]) -> None:
        """Write rows; new rows get their initial values in the arenas that are not written.

        Args:
            found: The result of `find` for distinct keys, with no change of the table since.
            rows: The numbers for each arena, in the order of the keys.
        """
        with allocating(_ADVICE):
            clock = self._clock + 1
            stored = {each: each.to_store(found.keys, rows[each], clock) for each in rows}
        positions = self.begin_write(found, rows)
        if self.is_on_disk:
            wholes = {arena: arena.to_wholes(each) for arena, each in stored.items()}
            self.put_on_disk(positions.numpy(), wholes)
            return
        for arena, values in stored.items():
            put(arena.storage, positions, values)

    def put_on_disk(self, positions: Integers, rows: Mapping[Arena, Wholes]) -> None:
        """Write rows as of `store`; new ones begin with their initial values in other arenas."""
        self.on_disk.put(positions, {arena.stored: each for arena, each in rows.items()})

    def begin_write(self, found: FoundRows, written: Collection[Arena]) -> torch.Tensor:
        """Do all of `store` but writing rows, which the caller does next.

        Args:
            found: As for `store`.
            written: The arenas that the caller writes.

        Returns:
            The positions of the rows, in the order of the keys.
        """
        with allocating(_ADVICE):
            positions = found.positions.numpy()
            kept = positions[positions >= 0] if found.num_new else positions
            if self._snapshots or self._changed is not None:
                self._keep(torch.from_numpy(kept))
            self._have_times_until(self._clock + 1)
            self._clock += 1
            self._touched.numpy()[kept] = self._clock
            if self._retention.counts_writes:
                self._count(torch.from_numpy(kept))
            found = self._with_room(found)
            is_begun = found.num_new and not self.is_on_disk
            begun = self._begun(found, written) if is_begun else {}
            placed = self._place(found) if found.num_new else found.positions
        for arena, fresh in begun.items():
            arena.storage[self._rows - found.num_new : self._rows] = fresh
        return placed

    def _have_times_until(self, clock: int) -> None:
        """Have room in each time for times until this one."""
        if clock > _MOST_SHORT:
            self._touched = self._touched.long()

    def _begun(self, found: FoundRows, written: Collection[Arena]) -> dict[Arena, torch.Tensor]:
        """Return the initial values of new rows in the arenas that are not written."""
        others = [arena for arena in self.arenas if arena not in written]
        return {arena: arena.begun(found.new_keys) for arena in others}

    def drop(self, keys: torch.Tensor) -> None:
        """Count keys whose gradients are dropped, because they have no row yet."""
        if len(keys):
            self.admission.count(keys)
            self._dropped += len(keys)

    def _with_room(self, found: FoundRows) -> FoundRows:
        doomed = self._too_old()
        if not len(doomed) and found.num_new:
            doomed = self._too_many(found)
        if not len(doomed):
            return found
        self._evict(doomed)
        return self._with_room(self.find(found.keys))

    def _too_many(self, found: FoundRows) -> torch.Tensor:
        new, most = found.num_new, self.most_rows()
        others = self._rows - (len(found.keys) - new)
        number = min(self._retention.eviction(self._rows, new, most), others)
        return self._first_to_go(number) if number else _NONE

    def _first_to_go(self, number: int) -> torch.Tensor:
        touched = self._touched[: self._rows]
        if not self._retention.counts_writes:
            return oldest(touched, number)
        return rarest(self._counts[: self._rows], touched, self._clock, number)

    def _count(self, positions: torch.Tensor) -> None:
        """Count a write of rows."""
        counts = self._counts.index_select(0, positions)
        self._counts.index_copy_(0, positions, counts.clamp_(max=_MOST_COUNTED).add_(1))

    def pass_time(self, milliseconds: int) -> int:
        """Evict the rows that are idle for too long now, and return how many there were.

        Args:
            milliseconds: The time since the last such call.

        Raises:
            ResourceExhaustedError: There is not enough memory; nothing has changed.
        """
        later = self.idle_time.after(milliseconds, self._clock)
        with allocating(_ADVICE):
            doomed = self._unwritten_since(later.idle_since).nonzero().squeeze(1)
            if len(doomed):
                self._evict(doomed)
        self.idle_time = later
        return len(doomed)

    def _too_old(self) -> torch.Tensor:
        if not self._is_sweep_due(self._clock):
            return _NONE
        self._swept = self._clock
        old = self._unwritten_since(self._clock - self._retention.evict_after)
        return old.nonzero().squeeze(1)

    def _unwritten_since(self, time: int) -> torch.Tensor:
        """Return a mask of the rows that were not written after a time."""
        # All times are at least 0, and of a lower number torch would take the last 32 bits.
        return self._touched[: self._rows] <= max(time, -1)

    def _is_sweep_due(self, clock: int) -> bool:
        retention = self._retention
        return bool(retention.evict_after) and clock - self._swept >= retention.sweep_interval

    def _place(self, found: FoundRows) -> torch.Tensor:
        """Return the positions of keys; new keys get the next free ones."""
        keys, rows = found.new_keys, self._rows + found.num_new
        places = torch.arange(self._rows, rows)
        positions = found.positions.clone()
        positions.numpy()[found.new] = places.numpy()
        self._keep(places, KEY_CHANGED)
        self.admission.mark_stored(keys)
        self._index.reserve(len(keys), self._keys)
        self._index.insert(keys, places)
        # From here on no memory is taken.
        self._keys[self._rows : rows] = keys
        self._touched[self._rows : rows] = self._clock
        if self._retention.counts_writes:
            self._counts[self._rows : rows] = 1
        self._rows = rows
        return positions

    def _evict(self, doomed: torch.Tensor) -> None:
        """Remove rows, and move the last remaining rows to their positions."""
        rows = self._rows - len(doomed)
        stays = torch.ones(self._rows, dtype=torch.bool)
        stays[doomed] = False
        moved = stays[rows:].nonzero().squeeze(1) + rows
        holes = (~stays[:rows]).nonzero().squeeze(1)
        if self.is_on_disk:
            self.on_disk.reserve(len(holes))
        gone = self._evicted + len(doomed) - self._aged
        is_turned_over = self._retention.counts_writes and gone >= rows
        # Other memory, since snapshots share the present one.
        counts = self._counts >> 1 if is_turned_over else self._counts
        marks = (self._keys, self._touched, *([counts] if self._retention.counts_writes else []))
        last = [mark[moved] for mark in marks]
        numbers = {arena: arena.take(moved) for arena in self.arenas}
        keys = self._keys[:rows].index_copy(0, holes, last[0])
        index = KeyIndex.from_keys(keys)
        self._keep(holes, KEY_CHANGED)
        if self.is_on_disk:
            # They go, and snapshots may need them.
            for snapshot in list(self._snapshots):
                snapshot.keep(torch.arange(rows, self._rows))
        # From here on no memory is taken.
        for mark, moving in zip(marks, last, strict=True):
            set_rows(mark, holes, moving)
        if self.is_on_disk:
            wholes = {arena: arena.to_wholes(moving) for arena, moving in numbers.items()}
            self.put_on_disk(holes.numpy(), wholes)
            self.on_disk.drop(rows)
        else:
            for arena, moving in numbers.items():
                set_rows(arena.storage, holes, moving)
        self._evicted += len(doomed)
        self._rows, self._index, self._counts = rows, index, counts
        if is_turned_over:
            self._aged = self._evicted

    def _resize(self, capacity: int) -> None:
        # One after the other, since both the memory of before and of afterwards of all might be
        # more than there is. Where there is none, some are longer than others, which is no harm.
        self.capacity, rows = min(capacity, self.capacity), self._rows
        with allocating(_ADVICE):
            for arena in self.arenas:
                arena.storage = arena.resized(capacity, rows)
            self._keys = _resized(self._keys, capacity, rows)
            self._touched = _resized(self._touched, capacity, rows)
            if self._retention.counts_writes:
                self._counts = _resized(self._counts, capacity, rows)
            if self._changed is not None:
                self._changed = _resized(self._changed, capacity, rows)
                self._changed[rows:] = 0
            if self.is_on_disk:
                self.on_disk.grow(capacity)
        if not self.is_on_disk:
            # Snapshots keep the old memory, which nobody changes any more.
            self._snapshots.clear()
        self.capacity = capacity


def check_room(name: str, rows: int, most: int) -> None:
    """Check that a table has room for so many rows at once.

    Raises:
        InvalidArgumentError: Its limits allow fewer.
    """
    if rows > most:
        raise InvalidArgumentError(
            f"table {name!r} must store {rows} rows at once, and its max_rows and "
            f"max_bytes leave room for {most} with their optimizer state; raise them, "
            "or write fewer rows at a time",
            variable=name,
        )


def _resized(vector: torch.Tensor, capacity: int, count: int) -> torch.Tensor:
    larger = torch.empty(capacity, dtype=vector.dtype)
    larger[:count] = vector[:count]
    return larger
