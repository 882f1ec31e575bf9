"""How much of a dynamic table is kept, and what goes first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from stratagem_proto.v1.variable_pb2 import TableSpec
from stratagem_psserver.tables.key_index import MAX_POSITIONS, KeyIndex

# Beside its numbers a row takes its key and the time when it was touched.
_ROW_OVERHEAD = 16
# Whoever evicts sorts all rows by age, so it is not done for each new key.
_SHARE_EVICTED = 16
_SHARE_OF_AGE = 8
# Of the bytes of a table, for counting keys that have no row yet; and enough for some dozens of
# them.
_SHARE_FOR_COUNTS = 8
_LEAST_FOR_COUNTS = 2048


@dataclass(frozen=True)
class Retention:
    """The limits of one table.

    Attributes:
        evict_after: Writes of the table after which an untouched row goes; 0: never.
        max_rows: Most rows; 0: as many as there is memory for.
        max_bytes: Most bytes of rows, index and counts; 0: no limit.
        admission_count: How often a key must be seen before it has a row.
    """

    evict_after: int = 0
    max_rows: int = 0
    max_bytes: int = 0
    admission_count: int = 1

    @classmethod
    def of(cls, spec: TableSpec) -> Retention:
        keys = spec.dynamic
        return cls(
            keys.evict_after_writes, keys.max_rows, keys.max_bytes, max(1, keys.admission_count)
        )

    @property
    def count_bytes(self) -> int | None:
        """Most bytes for counting keys; None without limit."""
        if not self.max_bytes:
            return None
        if self.admission_count == 1:
            return 0
        return max(self.max_bytes // _SHARE_FOR_COUNTS, _LEAST_FOR_COUNTS)

    @property
    def sweep_interval(self) -> int:
        """Number of writes from one search for old rows to the next."""
        return max(1, self.evict_after // _SHARE_OF_AGE)

    def most_rows(self, row_bytes: int) -> int:
        """Return the largest number of rows of that many bytes that may be stored."""
        most = min(self.max_rows or MAX_POSITIONS, MAX_POSITIONS)
        if not self.max_bytes:
            return most
        available = self.max_bytes - (self.count_bytes or 0)
        return min(most, largest(partial(rows_nbytes, row_bytes), available))

    def eviction(self, rows: int, new: int, most: int) -> int:
        """Return how many rows must go so that so many new ones fit."""
        needed = rows + new - most
        return max(needed, most // _SHARE_EVICTED) if needed > 0 else 0


def rows_nbytes(row_bytes: int, rows: int) -> int:
    """Bytes that stored rows take with their keys, their ages and their index."""
    return rows * (row_bytes + _ROW_OVERHEAD) + KeyIndex.nbytes_for(rows)


def largest(nbytes: Callable[[int], int], available: int) -> int:
    """Return the largest number whose bytes, which grow with it, are available."""
    numbers = range(max(0, available) + 1)
    return max(0, bisect_right(numbers, available, key=nbytes) - 1)


def oldest(touched: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of the rows that were touched least recently; the first of equals."""
    return touched.argsort(stable=True)[:count]
