"""Which keys of a dynamic table have been seen often enough for a row."""

from __future__ import annotations

import copy

import torch

from stratagem_psserver.tables.key_index import KeyIndex
from stratagem_psserver.tables.retention import largest

# Counted keys that got their row stay in the index until they are so many.
_STORED_AT_LEAST = 1024


class Admission:
    """Counts keys until each may have a row.

    Args:
        needed: The how-manieth sight of a key is the first that counts; at least 1.
        max_bytes: Most bytes of the counts. Where more would be needed, all keys are forgotten and
            counted anew; of keys that come at once and are too many even so, the first are counted.
    """

    def __init__(self, needed: int, max_bytes: int | None = None) -> None:
        self.needed, self._max_bytes = max(1, needed), max_bytes
        self._is_shared = False
        self.forget()

    def forget(self) -> None:
        """Count all keys anew."""
        self._index = KeyIndex()
        self._counts = torch.zeros(0, dtype=torch.int64)

    def shared(self) -> Admission:
        """The counts as they are now, in the same memory until they change here."""
        other = copy.copy(self)
        self._is_shared = True
        return other

    def _part(self) -> None:
        """Take other memory before a change, if this one is shared."""
        if self._is_shared:
            self._index = copy.deepcopy(self._index)
            self._counts = self._counts.clone()
            self._is_shared = False

    def __len__(self) -> int:
        return len(self._index)

    def sights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys that are counted, in the order in which they came, and the counts.

        A count is 0 where the key has a row.
        """
        keys, positions = self._index.items()
        ordered = torch.empty_like(keys)
        ordered[positions] = keys
        return ordered, self._counts

    def restore(self, keys: torch.Tensor, counts: torch.Tensor) -> None:
        """Count on from what `sights` has said."""
        self._index, self._counts = KeyIndex.of(keys), counts

    @property
    def nbytes(self) -> int:
        if self.needed == 1:
            return 0
        return self._index.nbytes + self._counts.nbytes

    @property
    def waiting(self) -> int:
        """Number of keys that have been seen and have no row."""
        return int(self._counts.count_nonzero())

    def is_due(self, keys: torch.Tensor) -> torch.Tensor:
        """For each of some distinct keys, whether this sight of it is enough."""
        if self.needed == 1:
            return torch.ones(len(keys), dtype=torch.bool)
        return self._counted(self._index.find(keys)) + 1 >= self.needed

    def count(self, keys: torch.Tensor) -> None:
        """Count one more sight of distinct keys."""
        self._part()
        keys = keys[: self._room_for(len(keys))]
        positions = self._index.find(keys)
        new = keys[positions < 0]
        places = torch.arange(len(new)) + len(self._index)
        counts = torch.cat((self._counts, torch.ones_like(new)))
        counts[positions[positions >= 0]] += 1
        self._index.insert(new, places)
        self._counts = counts

    def mark_stored(self, keys: torch.Tensor) -> None:
        """Note that keys have a row now; if the row goes, they are counted anew."""
        if self.needed > 1:
            self._part()
            positions = self._index.find(keys)
            self._counts[positions[positions >= 0]] = 0

    def _counted(self, positions: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros_like(positions)
        known = positions >= 0
        counts[known] = self._counts[positions[known]]
        return counts

    def _room_for(self, more: int) -> int:
        """Return how many of so many keys can be counted."""
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
