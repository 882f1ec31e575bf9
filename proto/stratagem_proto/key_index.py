"""Maps from keys to positions, which take many keys at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

# A bucket's marks are the bytes of one number.
_WIDTH = 8
# The most keys per bucket on average; with more, too many would lie in the next bucket.
_MEAN = 5
_ENTRY_BYTES = 1 + 4
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)

MAX_POSITIONS = 2**31 - 1

_ONE, _BYTE = np.uint64(1), np.uint64(0xFF)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_MARK, _HALF = np.uint64(24), np.uint64(32)

# Times a number of which only bit 8k is 1, this has k in its three highest bits.
_NUMBERS_OF_BYTES = np.uint64(sum(k << (61 - 8 * k) for k in range(_WIDTH)))
_SEVEN, _TOP = np.uint64(7), np.uint64(61)

_Ints = npt.NDArray[np.int64]
_Marks = npt.NDArray[np.uint64]


class KeyIndex:
    """A map of distinct int64 keys to positions from 0 to 2^31 - 1.

    It has no keys: who has them at their positions passes these. Of each key it has a position and
    a mark, a byte of its hash, so that hardly any other key is looked at. A key lies in the bucket
    of its hash or, if that is full, in the next bucket that is not. Buckets fill from the left, and
    keys are never removed. That takes 8 to 12 bytes a key; with the keys in it there were 20 to 38.

    Methods take memory before they change anything, so the index is unchanged if there is none.

    Args:
        expected: The number of keys to take memory for.
    """

    def __init__(self, expected: int = 0) -> None:
        self._count = 0
        self._buckets = _buckets_for(expected)
        # 0 where there is no key.
        self._marks = torch.zeros(self._buckets, _WIDTH, dtype=torch.uint8)
        self._positions = torch.zeros(self._buckets, _WIDTH, dtype=torch.int32)

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
        return self._marks.nbytes + self._positions.nbytes

    @staticmethod
    def nbytes_for(count: int) -> int:
        """Return the size of an index with that many keys."""
        return _buckets_for(count) * _WIDTH * _ENTRY_BYTES

    def more_nbytes(self, more: int) -> int:
        """Return how many bytes so many more keys take."""
        return max(0, KeyIndex.nbytes_for(len(self) + more) - self.nbytes)

    def find(self, keys: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """Return the positions of keys as an int64 vector; -1 for keys that have none.

        Args:
            keys: An int64 vector, in any order and with any repetitions.
            held: The key at each position, a vector of integers. Keys that stand elsewhere than
                they were put, or behind its end, are not found there.
        """
        each, at = keys.numpy(), held.numpy()
        if not self._count or not len(at):
            return torch.full_like(keys, -1)
        bucket, mark = self._places(each)
        likely = self._likely(bucket, mark)
        found = self._first(bucket, likely)
        # Whatever has led to a position, the key is there or not.
        is_missing = at.take(found, mode="clip") != each
        is_missing |= found >= len(at)
        missing = np.flatnonzero(is_missing)
        if len(missing):
            found[missing] = -1
            likely = likely[missing]
            self._look_on(found, missing, each, at, bucket[missing], likely & (likely - _ONE))
        return torch.from_numpy(found)

    def _look_on(
        self, found: _Ints, missing: _Ints, each: _Ints, at: _Ints, bucket: _Ints, likely: _Marks
    ) -> None:
        """Look in all places of buckets in which some are likely, and in the next buckets."""
        positions, last = self._positions.numpy(), self._marks.numpy()[:, _WIDTH - 1]
        goes_on = likely != 0
        goes_on |= last[bucket] != 0
        while len(missing := missing[goes_on]):
            bucket = bucket[goes_on]
            candidates = positions[bucket]
            is_there = at.take(candidates, mode="clip") == each[missing][:, None]
            is_there &= candidates < len(at)
            place = is_there.argmax(1)[:, None]
            is_found = np.take_along_axis(is_there, place, 1)[:, 0]
            here = np.take_along_axis(candidates, place, 1)[:, 0]
            found[missing[is_found]] = here[is_found]
            # A key lies in the next bucket only if its own is full.
            goes_on = last[bucket] != 0
            goes_on &= ~is_found
            bucket = (bucket + 1) % self._buckets

    def _likely(self, bucket: _Ints, mark: _Marks) -> _Marks:
        """Return numbers whose bytes are 0x80 where a bucket has a mark, from the left.

        Behind the first such byte one may say so of another mark.
        """
        marks = self._marks.view(-1).numpy().view("<u8").take(bucket)
        marks ^= mark * _ONES
        likely: _Marks = marks - _ONES
        likely &= ~marks
        likely &= _HIGHS
        return likely

    def _first(self, bucket: _Ints, likely: _Marks) -> _Ints:
        """Return the position at the first likely place of each bucket, or at any where none is."""
        byte = likely & (~likely + _ONE)
        byte >>= _SEVEN
        byte *= _NUMBERS_OF_BYTES
        byte >>= _TOP
        place = bucket * _WIDTH
        place += byte.view(np.int64)
        position: _Ints = self._positions.view(-1).numpy().take(place).astype(np.int64)
        return position

    def insert(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Add distinct keys that the index does not have; there is memory for them.

        Args:
            keys: A vector of keys.
            positions: An int64 vector of their positions.
        """
        self._put(keys, positions.int())
        self._count += len(keys)

    def reserve(self, more: int, held: torch.Tensor) -> None:
        """Take the memory for so many more keys.

        Args:
            more: How many.
            held: The keys of the index at their positions, which are the first ones.
        """
        if self.more_nbytes(more):
            larger = KeyIndex(len(self) + more)
            larger._put(held[: len(self)], torch.arange(len(self), dtype=torch.int32))
            self._buckets = larger._buckets
            self._marks, self._positions = larger._marks, larger._positions

    def _put(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        placed: list[torch.Tensor] = []
        try:
            bucket, marks = map(torch.from_numpy, self._places(keys.long().numpy()))
            marks = marks.view(torch.int64).to(torch.uint8)
            while len(bucket):
                bucket, order = bucket.sort()
                marks, positions = marks[order], positions[order]
                slot = _places_in_runs(bucket)
                # Of a new index this took 0.76 of 1.86 s with 3.9 million keys.
                if self._count or placed:
                    slot += self._taken(bucket)
                fits = slot < _WIDTH
                placed.append(bucket[fits] * _WIDTH + slot[fits])
                self._positions.view(-1)[placed[-1]] = positions[fits]
                self._marks.view(-1)[placed[-1]] = marks[fits]
                late = ~fits
                marks, positions = marks[late], positions[late]
                bucket = (bucket[late] + 1) % self._buckets
        except BaseException:
            # The new keys are the last ones in their buckets.
            for each in placed:
                self._marks.view(-1).index_fill_(0, each, 0)
            raise

    def _taken(self, bucket: torch.Tensor) -> torch.Tensor:
        return (self._marks.index_select(0, bucket) != 0).sum(1)

    def _places(self, keys: _Ints) -> tuple[_Ints, _Marks]:
        """Return the buckets and the marks of keys, by multiplicative hashing.

        Knuth, "The Art of Computer Programming", volume 3, section 6.4; the upper bits of the
        product times the number of buckets, as in Lemire, "Fast random integer generation in an
        interval", 2019, so that their number need not be a power of two.
        """
        product = keys >> 32
        product ^= keys
        product *= _MULTIPLIER
        hashed = product.view(np.uint64)
        mark: _Marks = hashed >> _MARK
        mark &= _BYTE
        bucket = hashed >> _HALF
        bucket *= np.uint64(self._buckets)
        bucket >>= _HALF
        return bucket.view(np.int64), np.maximum(mark, _ONE, out=mark)


class PositionArray:
    """The positions of the rows of a fixed vocabulary, an int32 for each row of it.

    It has the methods of `KeyIndex`, and finds 512 rows in 4 us. The memory is none of the
    machine's until a row near by is stored.

    Args:
        rows: The number of rows of the vocabulary.
    """

    def __init__(self, rows: int) -> None:
        # One more than the position, since memory of zeros comes untouched.
        self._behind = torch.zeros(rows, dtype=torch.int32)

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

    def find(self, keys: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        """Return the positions of rows as an int64 vector; -1 for those that have none.

        Raises:
            IndexError: The vocabulary has no such row.
        """
        return self._behind.index_select(0, keys).long().sub_(1)

    def insert(self, keys: torch.Tensor, positions: torch.Tensor) -> None:
        """Give distinct rows positions, whether or not they have one."""
        self._behind.index_copy_(0, keys.long(), positions.add(1).int())

    def reserve(self, more: int, held: torch.Tensor) -> None:
        """Do nothing: all memory was taken at first."""


def _buckets_for(count: int) -> int:
    """Return the number of buckets for that many keys, a power of two or three quarters of one."""
    needed = max(1, -(-count // _MEAN))
    power = 1 << (needed - 1).bit_length()
    return max(1, power * 3 // 4) if power * 3 // 4 >= needed else power


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
        keys: A vector of distinct keys, in any order.
        after: Return only larger keys; None for all.
        limit: The most keys to return; 0 for `MOST_KEYS`, which is also the maximum.

    Returns:
        The keys, an int64 vector, and whether there are more.
    """
    # Of a vector, since keys of 32 bits are compared with a number of its own last 32.
    larger = keys if after is None else keys[keys > torch.tensor([after])]
    count = min(len(larger), limit or MOST_KEYS, MOST_KEYS)
    # A page is a small part of a large table, so selecting it is faster than sorting all keys.
    smallest = larger.topk(count, largest=False).values
    return smallest.long(), count < len(larger)
