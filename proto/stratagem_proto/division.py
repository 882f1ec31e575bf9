"""Dividing the rows of a variable, or the keys of a table, evenly between its parts.

Parts have rows that follow on each other, as TensorFlow divides variables, or they take rows in
turn: then the popular rows, which have low numbers in most vocabularies, are spread over all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch

from stratagem_proto.v1.variable_pb2 import Interleaved, Partition, VariableSpec


def sizes_of_shards(rows: int, shards: int) -> tuple[int, ...]:
    """Return the number of rows of each shard; those that have one row more come first.

    They are the same whether rows follow on each other or are taken in turn. Spec: PRT-6.

    Args:
        rows: The number of rows.
        shards: The number of shards, at least 1.
    """
    least, more = divmod(rows, shards)
    return (least + 1,) * more + (least,) * (shards - more)


@dataclass(frozen=True)
class PartRows:
    """The rows of a variable that one part has: `first`, `first + step`, and so on.

    Attributes:
        first: The first row.
        count: How many rows.
        step: From each row to the next, which is the number of parts that take rows in turn; 1 if
            rows follow on each other.
    """

    first: int
    count: int
    step: int = 1

    @classmethod
    def of_shard(cls, rows: int, number: int, shards: int, is_interleaved: bool) -> PartRows:
        """Return the rows of one of so many shards."""
        least, more = divmod(rows, shards)
        count = least + (number < more)
        if is_interleaved:
            return cls(number, count, shards)
        return cls(number * least + min(number, more), count)

    @classmethod
    def from_spec(cls, spec: VariableSpec) -> PartRows:
        """Return the rows of the part that a spec describes; all rows if it is the whole."""
        count = spec.tensor.shape[0] if spec.tensor.shape else 1
        partition = spec.partition
        if partition.HasField("interleaved"):
            return cls(partition.interleaved.part, count, partition.interleaved.parts)
        return cls(partition.offset[0] if partition.offset else 0, count)

    def partition(self, shape: Sequence[int]) -> Partition:
        """Return the description of this part of a variable of a shape."""
        if self.step > 1:
            interleaved = Interleaved(part=self.first, parts=self.step)
            return Partition(full_shape=shape, interleaved=interleaved)
        return Partition(full_shape=shape, offset=[self.first, *[0] * (len(shape) - 1)])

    @property
    def numbers(self) -> range:
        """The numbers of the rows in the whole variable."""
        return range(self.first, self.first + self.count * self.step, self.step)

    def some(self, start: int, count: int) -> PartRows:
        """Return at most so many of these rows, from the row of the part with a number on."""
        count = min(count, self.count - start)
        return PartRows(self.first + start * self.step, count, self.step)

    def select(self, whole: torch.Tensor) -> torch.Tensor:
        """Return these rows of a strided tensor, as a view."""
        if self.step == 1:
            return whole.narrow(0, self.first, self.count)
        return whole[self.first :: self.step]

    def has(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a mask of those rows of the whole variable that the part has."""
        places = rows - self.first
        is_within = (places >= 0) & (places < self.count * self.step)
        return is_within if self.step == 1 else is_within & (places % self.step == 0)

    def local(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the part that some of its rows in the whole variable are."""
        places = rows - self.first
        return places if self.step == 1 else places // self.step

    def whole(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the whole variable that rows of the part are."""
        return (rows if self.step == 1 else rows * self.step) + self.first

    def shared(self, other: PartRows) -> tuple[range, range]:
        """Return the rows that another part of the same variable has, too.

        Returns:
            Their numbers in this part, and in the other one; ascending.
        """
        common = gcd(self.step, other.step)
        step, others = self.step * other.step // common, other.step // common
        # By the Chinese remainder theorem, or there is none.
        apart, has_none = divmod(other.first - self.first, common)
        found = self.first + self.step * (apart * pow(self.step // common, -1, others) % others)
        found += -((found - max(self.first, other.first)) // step) * step
        stop = min(self.numbers.stop, other.numbers.stop)
        count = 0 if has_none else len(range(found, stop, step))
        return _numbers(self, found, step, count), _numbers(other, found, step, count)

    def __str__(self) -> str:
        if self.step == 1:
            return f"from row {self.first}"
        return f"every {self.step} rows from row {self.first}"


def _numbers(part: PartRows, row: int, step: int, count: int) -> range:
    start, step = (row - part.first) // part.step, step // part.step
    return range(start, start + count * step, step)


def are_all(parts: Sequence[PartRows], rows: int) -> bool:
    """Return whether parts are all those of a variable with so many rows, in their order."""
    count, step = len(parts), parts[0].step
    if step > 1:
        wanted = [PartRows.of_shard(rows, number, step, True) for number in range(count)]
        return count == step and list(parts) == wanted
    firsts, ends = [part.first for part in parts], [part.numbers.stop for part in parts]
    return all(part.step == 1 for part in parts) and [0, *ends] == [*firsts, rows]


def is_part(spec: VariableSpec) -> bool:
    """Return whether what a spec describes can be a part of what it says to be a part of."""
    shape, part = spec.tensor.shape, spec.partition
    if len(part.full_shape) != len(shape) or not shape:
        return False
    if part.HasField("interleaved"):
        number, parts = part.interleaved.part, part.interleaved.parts
        rows, *columns = part.full_shape
        is_one = number < parts and not part.offset and list(shape[1:]) == columns
        return is_one and shape[0] == PartRows.of_shard(rows, number, parts, True).count
    return len(part.offset) == len(shape) and all(
        0 <= offset <= full - size
        for full, offset, size in zip(part.full_shape, part.offset, shape, strict=True)
    )


_MULTIPLIER = 0xBF58476D1CE4E5B9 - (1 << 64)


def part_of_keys(keys: torch.Tensor, parts: int) -> torch.Tensor:
    """Return the number of the part that has each key.

    Keys are mixed by one multiplication of the finaliser of SplitMix64 (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014), so that regular ones are spread
    evenly.

    Args:
        keys: An int64 vector.
        parts: The number of parts of the table.
    """
    mixed = (keys ^ (keys >> 30)) * _MULTIPLIER
    return torch.remainder(mixed ^ (mixed >> 27), parts)
