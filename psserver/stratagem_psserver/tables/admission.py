"""Admission of keys to a dynamic table: a key gets a row once it was seen often enough."""

from __future__ import annotations

import copy

import torch

from stratagem_psserver.tables.key_index import KeyIndex
from stratagem_psserver.tables.retention import largest

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
        self.forget()

    def forget(self) -> None:
        """Drop all counts."""
        self._index = KeyIndex()
        self._counts = torch.zeros(0, dtype=torch.int64)

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
        return len(self._index)

    def sights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the counted keys, in the order in which they came, and their counts.

        The count of a key that has a row is 0.
        """
        keys, positions = self._index.items()
        ordered = torch.empty_like(keys)
        ordered[positions] = keys
        return ordered, self._counts

    def restore(self, keys: torch.Tensor, counts: torch.Tensor) -> None:
        """Replace the counts by what `sights` returned."""
        self._index, self._counts = KeyIndex.of(keys), counts

    @property
    def nbytes(self) -> int:
        if self.needed == 1:
            return 0
        return self._index.nbytes + self._counts.nbytes

    @property
    def waiting(self) -> int:
        """The number of keys that were seen and have no row."""
        return int(self._counts.count_nonzero())

    def is_due(self, keys: torch.Tensor) -> torch.Tensor:
        """Return for each of some distinct keys whether it gets a row at this sight."""
        if self.needed == 1:
            return torch.ones(len(keys), dtype=torch.bool)
        return self._counted(self._index.find(keys)) + 1 >= self.needed

    def count(self, keys: torch.Tensor) -> None:
        """Count one more sight of distinct keys."""
        self._separate()
        keys = keys[: self._room_for(len(keys))]
        positions = self._index.find(keys)
        new = keys[positions < 0]
        places = torch.arange(len(new)) + len(self._index)
        counts = torch.cat((self._counts, torch.ones_like(new)))
        counts[positions[positions >= 0]] += 1
        self._index.insert(new, places)
        self._counts = counts

    def mark_stored(self, keys: torch.Tensor) -> None:
        """Note that keys have a row now; after its eviction, a key is counted from 0."""
        if self.needed > 1:
            self._separate()
            positions = self._index.find(keys)
            self._counts[positions[positions >= 0]] = 0

    def _counted(self, positions: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros_like(positions)
        known = positions >= 0
        counts[known] = self._counts[positions[known]]
        return counts

    def _room_for(self, more: int) -> int:
        """Return how many of `more` keys can be counted."""
        if len(self._index) > 2 * self.waiting + _STORED_AT_LEAST:
            self._drop_stored()
        if self._max_bytes is None:
            return more
        if _nbytes(len(self._index) + more) > self._max_bytes:
            self.forget()
        return min(more, largest(_nbytes, self._max_bytes))

    def _drop_stored(self) -> None:
        keys, positions = self._index.items()
        live = self._counts[positions] > 0
        keys, counts = keys[live], self._counts[positions[live]]
        self._index, self._counts = KeyIndex.of(keys), counts


def _nbytes(keys: int) -> int:
    return KeyIndex.nbytes_for(keys) + 8 * keys
