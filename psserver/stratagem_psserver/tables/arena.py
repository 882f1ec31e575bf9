"""Arenas, which store rows of numbers by position, the positions of keys, and their snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.errors import DataLossError, ResourceExhaustedError
from stratagem_proto.programs.random_rows import (
    InitialValues,
    initial_rows,
    round_stochastically,
    round_to_nearest,
    stored_dtype,
)
from stratagem_proto.rows import WholeRows, Wholes, are_whole, as_wholes
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.tables.direct_file import Integers
from stratagem_psserver.tables.retention import Admission
from stratagem_psserver.tables.row_log import Column

if TYPE_CHECKING:
    from stratagem_psserver.tables.table import Table


Stored = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class FoundRows:
    """The positions of some keys.

    Attributes:
        keys: The keys, an int64 vector.
        positions: Their positions, an int64 vector; -1 for a key without a row.
    """

    keys: torch.Tensor
    positions: torch.Tensor

    @cached_property
    def is_new(self) -> torch.Tensor:
        """A mask of the keys that have no row."""
        return self.positions < 0

    @cached_property
    def new(self) -> npt.NDArray[np.int64]:
        """The places of the keys that have no row."""
        return np.flatnonzero(self.positions.numpy() < 0)

    @cached_property
    def new_keys(self) -> torch.Tensor:
        """The keys that have no row."""
        return torch.from_numpy(self.keys.numpy()[self.new])

    @cached_property
    def num_new(self) -> int:
        positions = self.positions.numpy()
        # Nearly always there is none, and the least one says so in half of the time.
        if not len(positions) or np.minimum.reduce(positions) >= 0:
            return 0
        return int(np.count_nonzero(positions < 0))

    def only(self, wanted: torch.Tensor) -> FoundRows:
        """Return some of the keys, which a mask selects."""
        return FoundRows(self.keys[wanted], self.positions[wanted])


class Arena:
    """The numbers of a table's rows, either the values or one slot.

    Attributes:
        table: The table.
        initial: The values of rows that are not stored, before they are rounded as stored ones.
        dtype: What the numbers are stored in, which may be narrower than what is computed with.
        storage: The numbers by position; those beyond the table's rows have no meaning. Empty for
            a table on a disk.
        column: The numbers in the store of a table on a disk; None for a table in memory.

    Raises:
        ResourceExhaustedError: There is not enough memory.
    """

    def __init__(self, table: Table, spec: VariableSpec) -> None:
        self.table, self.initial = table, InitialValues(spec)
        self.dtype = stored_dtype(spec)
        self.column = Column(self.row_bytes, self._begun_at) if table.is_on_disk else None
        self.storage = self._empty(0 if table.is_on_disk else table.capacity)
        is_whole = table.is_on_disk and not self.dtype.is_complex
        self._on_disk = StoredRows(self) if is_whole else None
        self._wholes: WholeRows | None = None
        self._wholes_of: torch.Tensor | None = None

    @cached_property
    def row_bytes(self) -> int:
        return self.initial.columns * self.dtype.itemsize

    @property
    def is_narrow(self) -> bool:
        """Whether numbers are stored in fewer bits than what is computed with."""
        return self.dtype != self.initial.dtype

    @property
    def stored(self) -> Column:
        """The numbers in the store of a table on a disk."""
        assert self.column is not None
        return self.column

    @property
    def whole_rows(self) -> WholeRows | StoredRows | None:
        """The present rows, for copying; None if they cannot be copied whole."""
        if self._on_disk is not None:
            return self._on_disk
        if self._wholes_of is not self.storage:
            self._wholes_of = self.storage
            self._wholes = WholeRows(self.storage) if are_whole(self.storage) else None
        return self._wholes

    def read(self, found: FoundRows) -> torch.Tensor:
        """Return a copy of some rows; those that are not stored have their initial values."""
        return self.filled(found, self.take)

    def take(self, positions: torch.Tensor) -> torch.Tensor:
        """Return a copy of stored rows."""
        if self.column is None:
            return self.storage.index_select(0, positions)
        rows = self._empty(len(positions))
        self.table.on_disk.take(self.column, positions.numpy(), as_wholes(rows))
        return rows

    def scan(self, positions: torch.Tensor) -> tuple[torch.Tensor, Integers]:
        """Do as `take` for rows on a disk that nobody has asked for.

        Returns:
            The rows, and the places of those that are not stored any more.
        """
        assert self.column is not None
        rows = self._empty(len(positions))
        absent = self.table.on_disk.scan(self.column, positions.numpy(), as_wholes(rows))
        return rows, absent

    def to_wholes(self, rows: torch.Tensor) -> Wholes:
        """Return rows in the dtype that they are stored in, as one element for each."""
        assert rows.dtype == self.dtype and rows.shape[1:] == self.initial.row_shape
        return as_wholes(rows.contiguous())

    def _begun_at(self, positions: Integers) -> Wholes:
        rows = self.begun(self.table.stored()[0][torch.from_numpy(positions)].long())
        return self.to_wholes(rows.to(self.dtype))

    def filled(self, found: FoundRows, stored: Stored) -> torch.Tensor:
        """Return rows like `read`, where `stored` copies the rows at given positions."""
        if not found.num_new:
            return stored(found.positions).to(self.initial.dtype)
        if found.num_new == len(found.keys):
            return self.begun(found.keys)
        rows = stored(found.positions.clamp(min=0)).to(self.initial.dtype)
        rows[found.is_new] = self.begun(found.keys[found.is_new])
        return rows

    def begun(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the initial values of rows, as they will be once they are stored."""
        rows = self.initial.rows(keys)
        return round_to_nearest(rows, self.dtype).to(rows.dtype) if self.is_narrow else rows

    def to_store(self, keys: torch.Tensor, rows: torch.Tensor, clock: int) -> torch.Tensor:
        """Return rows in the dtype that they are stored in.

        Args:
            keys: Their keys.
            rows: The rows, of the variable's dtype.
            clock: The time of the write, so that no two round in the same way.
        """
        if not self.is_narrow:
            return rows
        seed = clock.to_bytes(8, "little") + self.initial.spec.name.encode()
        return round_stochastically(rows, self.dtype, keys, seed)

    def resized(self, capacity: int, count: int) -> torch.Tensor:
        """Return a storage of another capacity, with the first rows of this one."""
        if self.column is not None:
            return self.storage
        storage = self._empty(capacity)
        storage[:count] = self.storage[:count]
        return storage

    def _empty(self, capacity: int) -> torch.Tensor:
        try:
            return torch.empty((capacity, *self.initial.row_shape), dtype=self.dtype)
        except RuntimeError as error:
            raise ResourceExhaustedError(
                f"{self.initial.spec.name!r} needs memory for {capacity} rows of "
                f"{self.row_bytes} bytes, which this machine does not have; use more "
                "servers, or a table with a limit"
            ) from error


class StoredRows:
    """The rows of an arena on a disk, copied as single numpy elements like `WholeRows`.

    Args:
        arena: The arena.
    """

    def __init__(self, arena: Arena) -> None:
        self.dtype: np.dtype[np.void] = np.dtype((np.void, arena.row_bytes))
        self._arena = arena

    def take(self, rows: Integers, into: Wholes) -> None:
        """Copy rows; what comes for those below 0 has no meaning."""
        store, column = self._arena.table.on_disk, self._arena.stored
        if not len(rows) or np.minimum.reduce(rows) >= 0:
            store.take(column, rows, into)
            return
        kept = rows >= 0
        some = np.empty(np.count_nonzero(kept), self.dtype)
        store.take(column, rows[kept], some)
        into[kept] = some


class RowsRead(NamedTuple):
    """Rows of an arena that are to be read.

    Attributes:
        arena: The arena.
        keys: The keys of the rows, an int64 vector; they may repeat.
        into: The tensor that gets the rows.
    """

    arena: Arena
    keys: torch.Tensor
    into: torch.Tensor


def read_rows(reads: Sequence[RowsRead]) -> None:
    """Copy rows of several arenas; those that are not stored have their initial values.

    The latter are made together, since that costs little more than those of one arena.
    """
    missing = list[tuple[RowsRead, FoundRows]]()
    for read in reads:
        arena, keys, into = read
        found = arena.table.find(keys)
        if arena.is_narrow or arena.column is not None:
            into.copy_(arena.read(found))
            continue
        if not found.num_new:
            torch.index_select(arena.storage, 0, found.positions, out=into)
            continue
        if found.num_new < len(keys):
            torch.index_select(arena.storage, 0, found.positions.clamp(min=0), out=into)
        missing.append((read, found))
    if missing:
        rows = initial_rows([(one.arena.initial, found.new_keys) for one, found in missing])
        for (one, found), made in zip(missing, rows, strict=True):
            one.into.index_copy_(0, torch.from_numpy(found.new), made)


MARK_DTYPES = (torch.int64, torch.int64, torch.int32)
"""What the keys, the times and the counts of rows are outside of their table."""

_NONE_ABSENT = np.empty(0, np.int64)
_RUN_BYTES = 1 << 20
_FIRST_COPIES = 1024

# All copies are sorted again once there is one in so many that came since.
_SORTED_TO_RECENT = 16


class TableSnapshot:
    """The rows of a table at one moment; a row is copied before it first changes.

    So a snapshot takes memory only for the rows that change while it is open. One thread changes
    the table and calls `keep` before; another thread reads the rows.

    Args:
        count: The number of rows.
        marks: The marks of the table, or the first of them.
        arenas: The arenas of the table, or some of them. They are numbered behind the marks.
        admission: The table's counts at that moment, which do not change.

    Attributes:
        count: As the argument.
        admission: As the argument.
    """

    def __init__(
        self,
        count: int,
        marks: Sequence[torch.Tensor],
        arenas: Sequence[Arena],
        admission: Admission,
    ) -> None:
        self.count, self.admission = count, admission
        stores = [arena.storage if arena.column is None else arena for arena in arenas]
        self._arrays: list[torch.Tensor | Arena] = [*marks, *stores]
        # However short keys and times are in memory, they are as long as others elsewhere.
        self._dtypes = [*MARK_DTYPES[: len(marks)], *(arena.dtype for arena in arenas)]
        # Memory that an arena has later is not that of this moment.
        self._copies = [
            each.storage[:0] if isinstance(each, Arena) else each[:0] for each in self._arrays
        ]
        # Whether each row was copied; empty until one is. Where its copy is says the order of the
        # copies, which takes no memory for rows that do not change.
        self._is_copied = torch.empty(0, dtype=torch.uint8)
        self._positions = torch.empty(0, dtype=torch.int32)
        # The first copies by ascending positions: these, and the places of the copies.
        self._sorted = torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64)
        self._copied = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the copies, and of which rows have one."""
        arrays = (self._is_copied, self._positions, *self._sorted, *self._copies)
        return sum(array.nbytes for array in arrays)

    def keep(self, positions: torch.Tensor) -> None:
        """Copy distinct rows that are about to change."""
        with self._lock:
            if not len(self._is_copied):
                self._is_copied = torch.zeros(self.count, dtype=torch.uint8)
            marks, places = self._is_copied.numpy(), positions.numpy()
            places = places[places < self.count]
            places = places[marks[places] == 0]
            if not len(places):
                return
            copied, positions = self._copied + len(places), torch.from_numpy(places)
            self._make_room(copied)
            for copies, array in zip(self._copies, self._arrays, strict=True):
                rows = array.take(positions) if isinstance(array, Arena) else array[positions]
                copies[self._copied : copied] = rows
            self._positions[self._copied : copied] = positions
            marks[places] = 1
            self._copied = copied

    def _make_room(self, copied: int) -> None:
        capacity = len(self._copies[0])
        if copied <= capacity:
            return
        capacity = min(self.count, max(copied, 2 * capacity, _FIRST_COPIES))
        positions = self._positions.new_empty(capacity)
        positions[: self._copied] = self._positions[: self._copied]
        self._positions = positions
        for number, copies in enumerate(self._copies):
            larger = copies.new_empty(capacity, *copies.shape[1:])
            larger[: self._copied] = copies[: self._copied]
            self._copies[number] = larger

    def runs(self, number: int) -> Iterator[torch.Tensor]:
        """Yield the rows of an array, some at a time; on any thread."""
        template = self._copies[number]
        row_bytes = template.shape[1:].numel() * template.itemsize
        at_once = max(1, _RUN_BYTES // max(1, row_bytes))
        for start in range(0, self.count, at_once):
            stop = min(start + at_once, self.count)
            yield self.rows(number, torch.arange(start, stop))

    def rows(self, number: int, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows of an array at some positions, which may repeat."""
        array = self._arrays[number]
        # What changes before or meanwhile has a copy by then.
        if isinstance(array, Arena):
            rows, absent = array.scan(positions)
        else:
            rows, absent = array.index_select(0, positions), _NONE_ABSENT
        with self._lock:
            if self._copied:
                changed = self._is_copied[positions].nonzero().squeeze(1)
                if len(changed):
                    rows[changed] = self._copies[number][self._places(positions[changed].int())]
            if len(absent) and not (self._copied and self._is_copied[positions[absent]].all()):
                raise DataLossError("a snapshot lacks rows that the table does not have any more")
            return rows.to(self._dtypes[number])

    def _places(self, positions: torch.Tensor) -> torch.Tensor:
        """Return where the copies of rows are; the lock is held.

        Nearly all copies are sorted once, and those since then each time.
        """
        ascending, order = self._sorted
        if (self._copied - len(order)) * _SORTED_TO_RECENT > len(order):
            ascending, order = self._sorted = self._positions[: self._copied].sort()
        at = torch.searchsorted(ascending, positions).clamp_(max=len(order) - 1)
        places, is_recent = order[at], ascending[at] != positions
        if is_recent.any():
            ascending, recent = self._positions[len(order) : self._copied].sort()
            at = torch.searchsorted(ascending, positions[is_recent])
            places[is_recent] = len(order) + recent[at]
        return places

    def keys(self) -> torch.Tensor:
        """Return the keys of all rows."""
        return self.rows(0, torch.arange(self.count))
