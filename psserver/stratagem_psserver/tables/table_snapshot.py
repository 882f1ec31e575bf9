"""The rows of a table at one moment, kept while the table changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch

from stratagem_psserver.tables.admission import Admission

_RUN_BYTES = 1 << 20
_FIRST_COPIES = 1024


class TableSnapshot:
    """The rows of a table at one moment; a row is copied before it first changes.

    So a snapshot takes memory only for the rows that change while it is open. One thread changes
    the table and calls `keep` before; another thread reads the rows.

    Args:
        arrays: The tensors of the table's rows, with the same positions in each.
        admission: The table's counts at that moment, which do not change.

    Attributes:
        count: The number of rows.
        admission: As the argument.
    """

    def __init__(self, arrays: Sequence[torch.Tensor], admission: Admission) -> None:
        self.count = len(arrays[0])
        self.admission = admission
        self._arrays = list(arrays)
        self._copies = [array[:0] for array in arrays]
        # The position of the copy of each row, -1 for none; empty until a row is copied.
        self._places = torch.empty(0, dtype=torch.int32)
        self._copied = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the copies and of their positions."""
        return sum(array.nbytes for array in (self._places, *self._copies))

    def keep(self, positions: torch.Tensor) -> None:
        """Copy distinct rows that are about to change."""
        with self._lock:
            if not len(self._places):
                self._places = torch.full((self.count,), -1, dtype=torch.int32)
            positions = positions[positions < self.count]
            positions = positions[self._places[positions] < 0]
            copied = self._copied + len(positions)
            self._make_room(copied)
            for copies, array in zip(self._copies, self._arrays, strict=True):
                copies[self._copied : copied] = array[positions]
            places = torch.arange(self._copied, copied, dtype=torch.int32)
            self._places[positions] = places
            self._copied = copied

    def _make_room(self, copied: int) -> None:
        capacity = len(self._copies[0])
        if copied <= capacity:
            return
        capacity = min(self.count, max(copied, 2 * capacity, _FIRST_COPIES))
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
        with self._lock:
            rows = self._arrays[number].index_select(0, positions)
            if len(self._places):
                places = self._places[positions]
                changed = (places >= 0).nonzero().squeeze(1)
                rows[changed] = self._copies[number][places[changed]]
            return rows

    def keys(self) -> torch.Tensor:
        """Return the keys of all rows."""
        return self.rows(0, torch.arange(self.count))
