"""The limits of a dynamic table, and which rows are evicted first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from stratagem_proto.v1.variable_pb2 import TableSpec
from stratagem_psserver.tables.key_index import MAX_POSITIONS, KeyIndex

# Bytes of a row's key and of the time of its last write.
_ROW_OVERHEAD = 16
# An eviction sorts all rows by age, so it removes at least this part of the rows.
_SHARE_EVICTED = 16
# Old rows are searched for whenever this part of `evict_after` has passed.
_SHARE_OF_AGE = 8
# The part of a table's bytes for counting keys that have no row, and a minimum for some dozens.
_SHARE_FOR_COUNTS = 8
_LEAST_FOR_COUNTS = 2048


@dataclass(frozen=True)
class Retention:
    """The limits of one table.

    Attributes:
        evict_after: A row is evicted when the table was written so many times without it; 0 for
            never.
        max_rows: Most rows; 0 for as many as fit into memory.
        max_bytes: Most bytes of rows, index and counts; 0 for no limit.
        admission_count: How often a key must be seen to get a row.
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
        """Most bytes for counting keys; None for no limit."""
        if not self.max_bytes:
            return None
        if self.admission_count == 1:
            return 0
        return max(self.max_bytes // _SHARE_FOR_COUNTS, _LEAST_FOR_COUNTS)

    @property
    def sweep_interval(self) -> int:
        """The number of writes from one search for old rows to the next."""
        return max(1, self.evict_after // _SHARE_OF_AGE)

    def most_rows(self, row_bytes: int) -> int:
        """Return the largest number of rows of that many bytes that may be stored."""
        most = min(self.max_rows or MAX_POSITIONS, MAX_POSITIONS)
        if not self.max_bytes:
            return most
        available = self.max_bytes - (self.count_bytes or 0)
        return min(most, largest(partial(rows_nbytes, row_bytes), available))

    def eviction(self, rows: int, new: int, most: int) -> int:
        """Return how many rows to evict so that so many new ones fit."""
        needed = rows + new - most
        return max(needed, most // _SHARE_EVICTED) if needed > 0 else 0


def rows_nbytes(row_bytes: int, rows: int) -> int:
    """Return the bytes of stored rows with their keys, their times and their index."""
    return rows * (row_bytes + _ROW_OVERHEAD) + KeyIndex.nbytes_for(rows)


def largest(nbytes: Callable[[int], int], available: int) -> int:
    """Return the largest number for which the bytes are available; they grow with it."""
    numbers = range(max(0, available) + 1)
    return max(0, bisect_right(numbers, available, key=nbytes) - 1)


def oldest(touched: torch.Tensor, count: int) -> torch.Tensor:
    """Return the positions of the least recently written rows; of equals, the first ones."""
    return touched.argsort(stable=True)[:count]
