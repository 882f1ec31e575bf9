"""The arithmetic of variables whose rows are divided over shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from stratagem_proto.division import sizes_of_shards
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import ascending_order


class Rows(NamedTuple):
    """Consecutive rows of a variable.

    Attributes:
        offset: The first row.
        size: How many rows.
    """

    offset: int
    size: int

    @property
    def end(self) -> int:
        """The row after the last one."""
        return self.offset + self.size

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return these rows of a strided tensor, as a view."""
        return whole.narrow(0, self.offset, self.size)


class Routed(NamedTuple):
    """Those of a list of rows that one shard has.

    Attributes:
        positions: Where in the list they stand, ascending; int64 tensor of shape [n].
        rows: Where in the shard they are; int64 tensor of shape [n].
        start: Where the first one stands if they are a run that follows on that of the shard
            before; None if they are not.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    start: int | None = None

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Return what stands there in a list as long, as a view where it is a run."""
        if self.start is None:
            return values[self.positions.to(values.device)]
        return values.narrow(0, self.start, len(self.rows))


class RowCoding(NamedTuple):
    """How the rows of a variable are numbered by its parts.

    The number of a row is `row // modulus + row % modulus * stride`; those of a part follow each
    other.

    Attributes:
        total: How many rows there are.
        end: More than all numbers.
        modulus: As above.
        stride: As above.
        starts: The number of the first row of each part.
        firsts: The first row of each part, whose others follow at a distance of `modulus`.
    """

    total: int
    end: int
    modulus: int
    stride: int
    starts: Sequence[int]
    firsts: Sequence[int]


@dataclass(frozen=True)
class Layout:
    """Which shard has which rows: each has some that follow on those before it.

    Attributes:
        sizes: Number of rows of each shard.
    """

    sizes: tuple[int, ...]

    @classmethod
    def div(cls, rows: int, shards: int) -> Layout:
        """Return the layout that divides rows as evenly as possible.

        The shards that have one row more come first. Spec: PRT-6.

        Args:
            rows: How many rows there are.
            shards: How many shards there are to be, at least 1.
        """
        return cls(sizes_of_shards(rows, shards))

    @property
    def total(self) -> int:
        """Number of rows of all shards."""
        return sum(self.sizes)

    @property
    def is_div(self) -> bool:
        """Whether it is what `div` returns."""
        return self == Layout.div(self.total, len(self.sizes))

    @property
    def shards(self) -> tuple[Rows, ...]:
        """The rows of each shard."""
        offsets = accumulate(self.sizes[:-1], initial=0)
        return tuple(map(Rows, offsets, self.sizes))

    @cached_property
    def coding(self) -> RowCoding | None:
        """How rows are numbered by shards; None if there may be any keys."""
        offsets = [shard.offset for shard in self.shards]
        return RowCoding(self.total, self.total, 1, 0, offsets, offsets)

    def route(self, rows: torch.Tensor) -> list[Routed]:
        """Return for each shard which of some rows it has; repeated ones stay so.

        Args:
            rows: Integer tensor of shape [n].

        Raises:
            InvalidArgumentError: There is no such row.
        """
        rows = rows.to("cpu", torch.int64)
        self._require_rows(rows)
        shards = self.shards
        if len(shards) == 1:
            return [Routed(torch.arange(len(rows)), rows, 0)]
        ends = torch.tensor([shard.end for shard in shards])
        if _ascends(rows):
            # Those of lookups do.
            before = [0, *torch.searchsorted(rows, ends).tolist()]
            return [
                Routed(torch.arange(start, end), rows[start:end] - shard.offset, start)
                for shard, (start, end) in zip(shards, pairwise(before), strict=True)
            ]
        owners = torch.bucketize(rows, ends, right=True)
        order = ascending_order(owners)
        counts = torch.bincount(owners, minlength=len(shards)).tolist()
        rows = rows[order]
        shares = zip(order.split(counts), rows.split(counts), shards, strict=True)
        return [Routed(positions, share - shard.offset) for positions, share, shard in shares]

    def _require_rows(self, rows: torch.Tensor) -> None:
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.total:
            raise InvalidArgumentError(
                f"rows {int(rows.min())} to {int(rows.max())} are asked for, but the "
                f"variable has the rows 0 to {self.total - 1}"
            )

    def slices(self, rows: range) -> Iterator[tuple[int, slice]]:
        """Yield the number of each shard that has any of these ascending rows, and their slice."""
        for number, shard in enumerate(self.shards):
            first = _first_from(rows, shard.offset)
            last = _first_from(rows, shard.end)
            if first < last:
                start = rows[first] - shard.offset
                yield number, slice(start, rows[last - 1] - shard.offset + 1, rows.step)


def _first_from(rows: range, bound: int) -> int:
    """How many of ascending rows lie before a bound."""
    return min(len(rows), max(0, -((rows.start - bound) // rows.step)))


def _ascends(numbers: torch.Tensor) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def merge(parts: Sequence[torch.Tensor], routed: Sequence[Routed]) -> torch.Tensor:
    """Return rows that came from several shards in the order in which they were asked.

    They are differentiable with respect to the parts.
    """
    joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    if all(one.start is not None for one in routed):
        return joined
    positions = torch.cat([one.positions for one in routed])
    if _ascends(positions):
        return joined
    # Each position is there once.
    numbers = torch.arange(len(positions))
    order = torch.empty_like(positions).scatter_(0, positions, numbers)
    return joined.index_select(0, order.to(joined.device))
