"""The limits of a dynamic table: which keys get rows, and which rows are evicted first."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from stratagem_proto.key_index import MAX_POSITIONS, KeyIndex
from stratagem_proto.v1.checkpoint_pb2 import TableHistory, TableMoment
from stratagem_proto.v1.variable_pb2 import EVICTION_ORDER_RAREST, TableSpec

# Bytes of a row's key and of the time of its last write, and of how often it was written.
_MARK_BYTES, _COUNT_BYTES = 8 + 4, 4
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
    def from_spec(cls, spec: TableSpec) -> Retention:
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
        """Bytes of a row besides its numbers at first."""
        return _MARK_BYTES + (_COUNT_BYTES if self.counts_writes else 0)

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
    """Return the bytes of stored rows with their index."""
    return rows * row_bytes + KeyIndex.nbytes_for(rows)


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


# Keys that have got a row stay among the counted ones until there are so many.
_STORED_AT_LEAST = 1024


class Admission:
    """Counts how often keys were seen, until each gets a row.

    Args:
        needed: The number of sights, at least 1, at which a key gets a row.
        max_bytes: Most bytes of the counts. When they would need more, all counts are dropped and
            begin again. If the keys of one request alone need more, only the first are counted.
    """

    def __init__(self, needed: int, max_bytes: int | None = None) -> None:
        self.needed, self._max_bytes = max(1, needed), max_bytes
        self._is_shared = False
        self._index = KeyIndex()
        self._keys = self._counts = torch.zeros(0, dtype=torch.int64)

    def forget(self) -> None:
        """Drop all counts."""
        self.restore(self._keys[:0], self._counts[:0])

    def shared(self) -> Admission:
        """Return a copy of the present counts, which shares their memory until they change."""
        other = copy.copy(self)
        self._is_shared = True
        return other

    def _separate(self) -> None:
        """Copy the counts before a change, if their memory is shared."""
        if self._is_shared:
            self._index = copy.deepcopy(self._index)
            self._counts = self._counts.clone()
            self._is_shared = False

    def __len__(self) -> int:
        return len(self._keys)

    def sights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the counted keys, in the order in which they came, and their counts.

        The count of a key that has a row is 0.
        """
        return self._keys, self._counts

    def restore(self, keys: torch.Tensor, counts: torch.Tensor) -> None:
        """Replace the counts by what `sights` returned."""
        self._index, self._keys, self._counts = KeyIndex.from_keys(keys), keys, counts

    @property
    def nbytes(self) -> int:
        if self.needed == 1:
            return 0
        return self._index.nbytes + self._keys.nbytes + self._counts.nbytes

    @property
    def waiting(self) -> int:
        """The number of keys that were seen and have no row."""
        return int(self._counts.count_nonzero())

    def is_due(self, keys: torch.Tensor) -> torch.Tensor:
        """Return for each of some distinct keys whether it gets a row at this sight."""
        if self.needed == 1:
            return torch.ones(len(keys), dtype=torch.bool)
        return self._counted(self._index.find(keys, self._keys)) + 1 >= self.needed

    def count(self, keys: torch.Tensor) -> None:
        """Count one more sight of distinct keys."""
        self._separate()
        keys = keys[: self._room_for(len(keys))]
        positions = self._index.find(keys, self._keys)
        new = keys[positions < 0]
        places = torch.arange(len(new)) + len(self)
        held = torch.cat((self._keys, new))
        counts = torch.cat((self._counts, torch.ones_like(new)))
        counts[positions[positions >= 0]] += 1
        self._index.reserve(len(new), self._keys)
        self._index.insert(new, places)
        self._keys, self._counts = held, counts

    def mark_stored(self, keys: torch.Tensor) -> None:
        """Note that keys have a row now; after its eviction, a key is counted from 0."""
        if self.needed > 1:
            self._separate()
            positions = self._index.find(keys, self._keys)
            self._counts[positions[positions >= 0]] = 0

    def _counted(self, positions: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros_like(positions)
        known = positions >= 0
        counts[known] = self._counts[positions[known]]
        return counts

    def _room_for(self, more: int) -> int:
        """Return how many of `more` keys can be counted."""
        if len(self) > 2 * self.waiting + _STORED_AT_LEAST:
            self._drop_stored()
        if self._max_bytes is None:
            return more
        if _nbytes(len(self) + more) > self._max_bytes:
            self.forget()
        return min(more, largest(_nbytes, self._max_bytes))

    def _drop_stored(self) -> None:
        live = self._counts > 0
        self.restore(self._keys[live], self._counts[live])


def _nbytes(keys: int) -> int:
    return KeyIndex.nbytes_for(keys) + 16 * keys


# The part of the limit from one moment to the next.
_SHARE = 8


class _Moment(NamedTuple):
    milliseconds: int
    writes: int


@dataclass(frozen=True)
class IdleTime:
    """How many requests had written a table at some moments of its life.

    A row that was written last by one of the first `n` requests is idle since the moment at which
    there were so many. So a row needs no time besides the number of its last write, and whoever
    repeats the writes and the passages of time between them finds the same rows idle.

    Attributes:
        limit: For how long a row may be idle, in milliseconds; 0 for ever.
        now: The time that has passed for the table, in milliseconds.
        moments: Earlier moments, ascending: all after the limit, and the last one before.
    """

    limit: int = 0
    now: int = 0
    moments: tuple[_Moment, ...] = ()

    @property
    def interval(self) -> int:
        """The time from one moment to the next, in milliseconds."""
        return max(1, self.limit // _SHARE)

    def after(self, milliseconds: int, writes: int) -> IdleTime:
        """Return what there is once time has passed.

        Args:
            milliseconds: The time since the last such call.
            writes: How many requests have written the table.
        """
        now = self.now + milliseconds
        moments = self.moments
        if not moments or now - moments[-1].milliseconds >= self.interval:
            moments = (*moments, _Moment(now, writes))
        past = [moment for moment in moments if now - moment.milliseconds >= self.limit]
        return IdleTime(self.limit, now, moments[max(0, len(past) - 1) :])

    @property
    def idle_since(self) -> int:
        """The number of the last write of a row that is idle for the limit now; -1 for none."""
        first = self.moments[0] if self.moments else _Moment(self.now, 0)
        return first.writes if self.now - first.milliseconds >= self.limit else -1

    def describe(self, history: TableHistory) -> None:
        """Write it into the history of a table."""
        history.milliseconds = self.now
        history.moments.extend(TableMoment(milliseconds=m, writes=w) for m, w in self.moments)

    def restored(self, history: TableHistory) -> IdleTime:
        """Return that of a history, with this limit."""
        moments: Iterable[TableMoment] = history.moments if self.limit else ()
        each = tuple(_Moment(one.milliseconds, one.writes) for one in moments)
        return IdleTime(self.limit, history.milliseconds, each)
