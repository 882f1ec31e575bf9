"""Maps from keys to positions, which take many keys at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

# The keys of a bucket fill one line of the processor's cache.
_WIDTH = 8
# The most keys per bucket on average; with more, too many would lie in the next bucket.
_MEAN = 5
_ENTRY_BYTES = 8 + 4
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)

MAX_POSITIONS = 2**31 - 1

# Times a number of which only byte k is 1, this has k in its three highest bits.
_NUMBERS_OF_BYTES = np.uint64(sum(k << (61 - 8 * k) for k in range(_WIDTH)))
_TOP, _ONE = np.uint64(61), np.uint64(1)

_Ints = npt.NDArray[np.int64]


class KeyIndex:
    """A map of distinct int64 keys to positions from 0 to 2^31 - 1.

    A key lies in the bucket of its hash or, if that is full, in the next bucket that is not.
    Buckets fill from the left, and keys are never removed.

    Methods take memory before they change anything, so the index is unchanged if there is none.

    Args:
        expected: The number of keys to take memory for.
    """

    def __init__(self, expected: int = 0) -> None:
        self._count = 0
        self._buckets = _buckets_for(expected)
        self._keys = torch.zeros(self._buckets, _WIDTH, dtype=torch.int64)
        self._positions = torch.full_like(self._keys, -1, dtype=torch.int32)

    @classmethod
    def from_keys(cls, keys: torch.Tensor) -> KeyIndex:
        """Return the index of a vector of distinct keys, whose positions are those in it."""
        index = cls(len(keys))
        index.insert(keys, torch.arange(len(keys)))
        return index

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._positions.nbytes

    @staticmethod
    def nbytes_for(count: int) -> int:
        """Return the size of an index with that many keys."""
        return _buckets_for(count) * _WIDTH * _ENTRY_BYTES

    def more_nbytes(self, more: int) -> int:
        """Return how many bytes so many more keys take."""
        return max(0, KeyIndex.nbytes_for(len(self) + more) - self.nbytes)

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the positions of keys as an int64 vector; -1 for keys that have none.

        Args:
            keys: An int64 vector, in any order and with any repetitions.
        """
        each = keys.numpy()
        bucket = self._bucket(each)
        found = self._look(each, bucket)
        # Nearly always all are found at once: of 512 keys that takes 21 us, and 115 with torch.
        open_ = np.flatnonzero(found < 0)
        while len(open_):
            # A key lies in the next bucket only if its own is full.
            is_full = self._positions.numpy()[bucket[open_], _WIDTH - 1] >= 0
            open_ = open_[is_full]
            bucket[open_] = (bucket[open_] + 1) % self._buckets
            found[open_] = self._look(each[open_], bucket[open_])
            open_ = open_[found[open_] < 0]
        return torch.from_numpy(found)

    def _look(self, keys: _Ints, bucket: _Ints) -> _Ints:
        # A bucket's comparisons are the bytes of one number: to look for the first match in them
        # takes numpy half of the time of this method.
        matches = (self._keys.numpy().take(bucket, axis=0) == keys[:, None]).view("<u8")[:, 0]
        # The first match: behind the keys of a bucket may be what was never put in whole.
        first = (matches & (~matches + _ONE)) * _NUMBERS_OF_BYTES >> _TOP
        place = bucket * _WIDTH + first.view(np.int64)
        found: _Ints = self._positions.view(-1).numpy().take(place).astype(np.int64)
        found[matches == 0] = -1
        return found

    def move(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Give distinct keys other positions, and add those that the index does not have.

        Args:
            keys: An int64 vector of keys.
            positions: An int64 vector of their positions.
        """
        is_known = self.find(keys) >= 0
        self.reserve(int((~is_known).sum()))
        mine, bucket = keys[is_known], torch.from_numpy(self._bucket(keys[is_known].numpy()))
        left = torch.arange(len(mine))
        while len(left):
            # All keys are here, so that each is found sooner or later.
            is_key = self._keys[bucket] == mine[left, None]
            is_here = (is_key & (self._positions[bucket] >= 0)).any(1)
            place = bucket[is_here] * _WIDTH + is_key[is_here].int().argmax(1)
            self._positions.view(-1)[place] = positions[is_known][left[is_here]].int()
            left, bucket = left[~is_here], (bucket[~is_here] + 1) % self._buckets
        self.insert(keys[~is_known], positions[~is_known])

    def insert(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Add distinct keys that the index does not have.

        Args:
            keys: An int64 vector of keys.
            positions: An int64 vector of their positions.
        """
        self.reserve(len(keys))
        self._put(keys, positions.int())
        self._count += len(keys)

    def reserve(self, more: int) -> None:
        """Take the memory for so many more keys."""
        if _buckets_for(len(self) + more) > self._buckets:
            larger = KeyIndex(len(self) + more)
            keys, positions = self.items()
            larger._put(keys, positions.int())
            self._buckets = larger._buckets
            self._keys, self._positions = larger._keys, larger._positions

    def items(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all keys and their positions, in no particular order."""
        taken = self._positions >= 0
        return self._keys[taken], self._positions[taken].long()

    def _put(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        placed: list[torch.Tensor] = []
        try:
            bucket = torch.from_numpy(self._bucket(keys.numpy()))
            while len(keys):
                bucket, order = bucket.sort()
                keys, positions = keys[order], positions[order]
                slot = _places_in_runs(bucket)
                # Of a new index this took 0.76 of 1.86 s with 3.9 million keys.
                if self._count or placed:
                    slot += self._taken(bucket)
                fits = slot < _WIDTH
                placed.append(bucket[fits] * _WIDTH + slot[fits])
                self._keys.view(-1)[placed[-1]] = keys[fits]
                self._positions.view(-1)[placed[-1]] = positions[fits]
                late = ~fits
                keys, positions = keys[late], positions[late]
                bucket = (bucket[late] + 1) % self._buckets
        except BaseException:
            # The new keys are the last ones in their buckets.
            for each in placed:
                self._positions.view(-1).index_fill_(0, each, -1)
            raise

    def _taken(self, bucket: torch.Tensor) -> torch.Tensor:
        return (self._positions.index_select(0, bucket) >= 0).sum(1)

    def _bucket(self, keys: _Ints) -> _Ints:
        """Return the buckets of keys by multiplicative hashing: the upper bits of a product.

        Knuth, "The Art of Computer Programming", volume 3, section 6.4.
        """
        bucket: _Ints = keys >> 32
        bucket ^= keys
        bucket *= _MULTIPLIER
        bucket >>= min(63, 65 - self._buckets.bit_length())
        bucket &= self._buckets - 1
        return bucket


class PositionArray:
    """The positions of the rows of a fixed vocabulary, an int32 for each row of it.

    It has the methods of `KeyIndex`, and finds 512 rows in 4 us. The memory is none of the
    machine's until a row near by is stored.

    Args:
        rows: The number of rows of the vocabulary.
    """

    def __init__(self, rows: int) -> None:
        self._count = 0
        # One more than the position, since memory of zeros comes untouched.
        self._behind = torch.zeros(rows, dtype=torch.int32)

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._behind.nbytes

    @staticmethod
    def nbytes_for(rows: int) -> int:
        """Return the size of the array of a vocabulary."""
        return 4 * rows

    def more_nbytes(self, more: int) -> int:
        """Return 0: all memory was taken at first."""
        return 0

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the positions of rows as an int64 vector; -1 for those that have none.

        Raises:
            IndexError: The vocabulary has no such row.
        """
        return self._behind.index_select(0, keys).long().sub_(1)

    def insert(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Add distinct rows that have no position."""
        self._behind.index_copy_(0, keys, positions.add(1).int())
        self._count += len(keys)

    def move(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Give distinct rows other positions, whether or not they have one."""
        self._count += int((self.find(keys) < 0).sum())
        self._behind.index_copy_(0, keys, positions.add(1).int())

    def reserve(self, more: int) -> None:
        """Do nothing: all memory was taken at first."""

    def items(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all rows that have a position, in ascending order, and their positions."""
        keys = self._behind.nonzero().squeeze(1)
        return keys, self._behind[keys].long().sub_(1)


def _buckets_for(count: int) -> int:
    """Return the number of buckets for that many keys, a power of two."""
    return 1 << max(0, -(-count // _MEAN) - 1).bit_length()


def _places_in_runs(ordered: torch.Tensor) -> torch.Tensor:
    """Return for each element of a sorted vector how many equal ones stand before it."""
    each = ordered.numpy()
    is_first = np.ones(len(each), np.bool_)
    np.not_equal(each[1:], each[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    # torch's `repeat_interleave` shares out even some hundred elements among threads: it took a
    # third of a step in which all rows were new.
    starts = np.repeat(firsts, np.diff(firsts, append=len(each)))
    return torch.from_numpy(np.arange(len(each)) - starts)


MOST_KEYS = 1 << 19
"""The most keys of a page, whose bytes are then those of a large chunk."""


def page_of(keys: torch.Tensor, after: int | None, limit: int) -> tuple[torch.Tensor, bool]:
    """Return a page of keys, in ascending order.

    A caller that goes on after the last key of each page gets each key once that exists all the
    time, even if keys move to other positions meanwhile.

    Args:
        keys: An int64 vector of distinct keys, in any order.
        after: Return only larger keys; None for all.
        limit: The most keys to return; 0 for `MOST_KEYS`, which is also the maximum.

    Returns:
        The keys, and whether there are more.
    """
    larger = keys if after is None else keys[keys > after]
    count = min(len(larger), limit or MOST_KEYS, MOST_KEYS)
    # A page is a small part of a large table, so selecting it is faster than sorting all keys.
    smallest = larger.topk(count, largest=False).values
    return smallest, count < len(larger)
