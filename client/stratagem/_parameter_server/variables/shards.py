"""The arithmetic of variables whose rows are divided over shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from stratagem_proto.division import PartRows, sizes_of_shards
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import ascending_order

_FEW_SHARDS = 4
"""For so many, a look at all rows for each takes less time than sorting them does."""


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


class Layout:
    """Which shard has which rows.

    Each shard has some that follow on those of the shard before it, or they take rows in turn.

    Args:
        sizes: Number of rows of each shard.
        is_interleaved: Whether they take rows in turn. Then the shards that have one row more come
            first.
    """

    def __init__(self, sizes: tuple[int, ...], is_interleaved: bool = False) -> None:
        self.sizes = sizes
        self.total = sum(sizes)
        self.follow(is_interleaved)

    @classmethod
    def div(cls, rows: int, shards: int) -> Layout:
        """Return the layout that divides rows as evenly as possible.

        The shards that have one row more come first. Spec: PRT-6.

        Args:
            rows: How many rows there are.
            shards: How many shards there are to be, at least 1.
        """
        return cls(sizes_of_shards(rows, shards))

    @classmethod
    def in_turn(cls, rows: int, shards: int) -> Layout:
        """Return the layout by which shards take rows in turn.

        Popular rows, which have low numbers in most vocabularies, are then spread over all shards.
        """
        return cls(sizes_of_shards(rows, shards), is_interleaved=shards > 1)

    def follow(self, is_interleaved: bool) -> None:
        """Divide rows in the way in which they are divided on the servers already."""
        self.is_interleaved = is_interleaved
        if is_interleaved:
            count = len(self.sizes)
            self.shards = [PartRows(n, size, count) for n, size in enumerate(self.sizes)]
            stride = max(self.sizes)
            starts = range(0, count * stride, stride)
            coding = RowCoding(self.total, count * stride, count, stride, starts, range(count))
        else:
            offsets = [*accumulate(self.sizes[:-1], initial=0)]
            self.shards = list(map(PartRows, offsets, self.sizes))
            coding = RowCoding(self.total, self.total, 1, 0, offsets, offsets)
        self._coding = coding

    @property
    def coding(self) -> RowCoding | None:
        """How rows are numbered by shards; None if there may be any keys."""
        return self._coding

    @property
    def is_div(self) -> bool:
        """Whether it is what `div` returns."""
        return not self.is_interleaved and self.sizes == sizes_of_shards(
            self.total, len(self.sizes)
        )

    def join(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the whole of which these are the shards."""
        if not self.is_interleaved:
            return torch.cat(list(values))
        whole = values[0].new_empty(self.total, *values[0].shape[1:])
        for rows, value in zip(self.shards, values, strict=True):
            rows.select(whole).copy_(value)
        return whole

    def route(self, rows: torch.Tensor) -> list[Routed]:
        """Return for each shard which of some rows it has; repeated ones stay so.

        Args:
            rows: Integer tensor of shape [n].

        Raises:
            InvalidArgumentError: There is no such row.
        """
        rows = rows.to("cpu", torch.int64)
        self._require_rows(rows)
        if len(self.shards) == 1:
            return [Routed(torch.arange(len(rows)), rows, 0)]
        if self.is_interleaved:
            return self._route_in_turn(rows)
        ends = torch.tensor([shard.numbers.stop for shard in self.shards])
        if _ascends(rows):
            # Those of lookups do.
            before = [0, *torch.searchsorted(rows, ends).tolist()]
            return [
                Routed(torch.arange(start, end), rows[start:end] - shard.first, start)
                for shard, (start, end) in zip(self.shards, pairwise(before), strict=True)
            ]
        owners = torch.bucketize(rows, ends, right=True)
        order = ascending_order(owners)
        counts = torch.bincount(owners, minlength=len(self.shards)).tolist()
        shares = zip(order.split(counts), rows[order].split(counts), self.shards, strict=True)
        return [Routed(positions, shard.local(share)) for positions, share, shard in shares]

    def _route_in_turn(self, rows: torch.Tensor) -> list[Routed]:
        # numpy is several times as fast here as torch.
        count, numbers = len(self.shards), rows.numpy()
        places = numbers // count
        owners = (numbers - places * count).astype(np.min_scalar_type(count))
        if count <= _FEW_SHARDS:
            positions = [np.flatnonzero(owners == number) for number in range(count)]
        else:
            counts = np.bincount(owners, minlength=count)
            order = owners.argsort(kind="stable")
            positions = np.split(order, counts.cumsum()[:-1])
        return [
            Routed(torch.from_numpy(some), torch.from_numpy(places[some])) for some in positions
        ]

    def _require_rows(self, rows: torch.Tensor) -> None:
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.total:
            raise InvalidArgumentError(
                f"rows {int(rows.min())} to {int(rows.max())} are asked for, but the "
                f"variable has the rows 0 to {self.total - 1}"
            )

    def slices(self, rows: range) -> Iterator[tuple[int, slice]]:
        """Yield the number of each shard that has any of these ascending rows, and their slice.

        They are in the order of the rows, which shards that take rows in turn are not.
        """
        assert not self.is_interleaved
        for number, shard in enumerate(self.shards):
            first = _first_from(rows, shard.first)
            last = _first_from(rows, shard.numbers.stop)
            if first < last:
                start = rows[first] - shard.first
                yield number, slice(start, rows[last - 1] - shard.first + 1, rows.step)


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
