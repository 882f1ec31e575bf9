"""Arenas, which store rows of numbers by position, the positions of keys, and their snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.programs.random_rows import (
    InitialValues,
    initial_rows,
    round_stochastically,
    round_to_nearest,
    stored_dtype,
)
from stratagem_proto.rows import WholeRows, are_whole
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.tables.retention import Admission

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
        storage: The numbers by position; those beyond the table's rows have no meaning.
        file: The file that the storage is in; None if it is in memory alone.

    Raises:
        ResourceExhaustedError: There is not enough memory.
    """

    def __init__(self, table: Table, spec: VariableSpec) -> None:
        self.table, self.initial = table, InitialValues(spec)
        self.dtype = stored_dtype(spec)
        pages = table.pages
        self.file = pages.file(self.row_bytes, spec.name) if pages and self.row_bytes else None
        self.storage = self._allocated(table.capacity)
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
    def whole_rows(self) -> WholeRows | None:
        """The present storage, for copying rows; None if its rows cannot be copied whole."""
        if self._wholes_of is not self.storage:
            self._wholes_of = self.storage
            self._wholes = WholeRows(self.storage) if are_whole(self.storage) else None
        return self._wholes

    def read(self, found: FoundRows) -> torch.Tensor:
        """Return a copy of some rows; those that are not stored have their initial values."""
        return self.filled(found, partial(self.storage.index_select, 0))

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
        if self.file is not None:
            return self._allocated(capacity)
        storage = self._allocated(capacity)
        storage[:count] = self.storage[:count]
        return storage

    def _allocated(self, capacity: int) -> torch.Tensor:
        shape = (capacity, *self.initial.row_shape)
        if self.file is not None:
            return self.file.allocated(capacity * self.row_bytes).view(self.dtype).view(shape)
        try:
            return torch.empty(shape, dtype=self.dtype)
        except RuntimeError as error:
            raise ResourceExhaustedError(
                f"{self.initial.spec.name!r} needs memory for {capacity} rows of "
                f"{self.row_bytes} bytes, which this machine does not have; use more "
                "servers, or a table with a limit"
            ) from error


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
        if arena.is_narrow:
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


_RUN_BYTES = 1 << 20
_FIRST_COPIES = 1024

# All copies are sorted again once there is one in so many that came since.
_SORTED_TO_RECENT = 16


class TableSnapshot:
    """The rows of a table at one moment; a row is copied before it first changes.

    So a snapshot takes memory only for the rows that change while it is open. One thread changes
    the table and calls `keep` before; another thread reads the rows.

    Args:
        arrays: The tensors of the table's rows, with the same positions in each.
        admission: The table's counts at that moment, which do not change.
        scan: Has rows in memory before they are read; None if they are.

    Attributes:
        count: The number of rows.
        admission: As the argument.
    """

    def __init__(
        self,
        arrays: Sequence[torch.Tensor],
        admission: Admission,
        scan: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        self.count = len(arrays[0])
        self.admission, self._scan = admission, scan
        self._arrays = list(arrays)
        self._copies = [array[:0] for array in arrays]
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
            marks, rows = self._is_copied.numpy(), positions.numpy()
            rows = rows[rows < self.count]
            rows = rows[marks[rows] == 0]
            if not len(rows):
                return
            copied, positions = self._copied + len(rows), torch.from_numpy(rows)
            self._make_room(copied)
            for copies, array in zip(self._copies, self._arrays, strict=True):
                copies[self._copied : copied] = array[positions]
            self._positions[self._copied : copied] = positions
            marks[rows] = 1
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
        array = self._arrays[number]
        row_bytes = array[:1].nbytes
        at_once = max(1, _RUN_BYTES // max(1, row_bytes))
        for start in range(0, self.count, at_once):
            stop = min(start + at_once, self.count)
            yield self.rows(number, torch.arange(start, stop))

    def rows(self, number: int, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows of an array at some positions, which may repeat."""
        if self._scan is not None:
            self._scan(positions)
        with self._lock:
            rows = self._arrays[number].index_select(0, positions)
            if self._copied:
                changed = self._is_copied[positions].nonzero().squeeze(1)
                if len(changed):
                    rows[changed] = self._copies[number][self._places(positions[changed].int())]
            return rows

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
