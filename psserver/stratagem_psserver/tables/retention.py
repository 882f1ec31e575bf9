"""The limits of a dynamic table, and which rows are evicted first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from stratagem_proto.v1.variable_pb2 import EVICTION_ORDER_RAREST, TableSpec
from stratagem_psserver.tables.key_index import MAX_POSITIONS, KeyIndex

# Bytes of a row's key and of the time of its last write, and of how often it was written.
ROW_OVERHEAD = 16
_COUNT_BYTES = 4
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
        evict_after_milliseconds: For how long a row may be idle; 0 for ever.
        counts_writes: Whether the rows that were written least often make room for new ones, and
            not those that were not for longest.
    """

    evict_after: int = 0
    max_rows: int = 0
    max_bytes: int = 0
    admission_count: int = 1
    evict_after_milliseconds: int = 0
    counts_writes: bool = False

    @classmethod
    def of(cls, spec: TableSpec) -> Retention:
        keys = spec.dynamic
        return cls(
            keys.evict_after_writes,
            keys.max_rows,
            keys.max_bytes,
            max(1, keys.admission_count),
            keys.evict_after_milliseconds,
            keys.eviction_order == EVICTION_ORDER_RAREST,
        )

    @property
    def mark_bytes(self) -> int:
        """Bytes of a row besides its numbers that not every table has."""
        return _COUNT_BYTES if self.counts_writes else 0

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
    return rows * (row_bytes + ROW_OVERHEAD) + KeyIndex.nbytes_for(rows)


def largest(nbytes: Callable[[int], int], available: int) -> int:
    """Return the largest number for which the bytes are available; they grow with it."""
    numbers = range(max(0, available) + 1)
    return max(0, bisect_right(numbers, available, key=nbytes) - 1)


def oldest(touched: torch.Tensor, count: int) -> torch.Tensor:
    """Return the positions of the least recently written rows; of equals, the first ones."""
    return touched.argsort(stable=True)[:count]


def rarest(counts: torch.Tensor, touched: torch.Tensor, clock: int, count: int) -> torch.Tensor:
    """Return the positions of the rows that were written least often; of equals, the oldest.

    Args:
        counts: How often each row was written.
        touched: The time of each row's last write.
        clock: The present time. Rows of now go last: they are about to be written.
        count: How many rows.
    """
    order = touched.argsort(stable=True)
    is_kept = touched == clock
    ranks = counts.masked_fill(is_kept, torch.iinfo(counts.dtype).max)[order]
    return order[ranks.argsort(stable=True)[:count]]
