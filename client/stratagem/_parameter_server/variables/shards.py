"""Which rows of a variable go to which shard, and which shard to which server."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from stratagem._core.device_names import DeviceName
from stratagem._core.tensors import TensorStandIn
from stratagem._core.variable_creation import initial_tensor
from stratagem_proto.division import PartRows, sizes_of_shards
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import ascending_order
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of

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

    def select(self, values: torch.Tensor) -> torch.Tensor:
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


_LOG = logging.getLogger("stratagem")

_LARGE = 10_000_000
"""From so many elements on a whole initial value is worth a warning."""

VariablePartitioner = Callable[..., Sequence[int]]
"""Takes `shape` and `dtype`; returns the number of shards, then ones."""


class ShardInfo(NamedTuple):
    """What an initial value that is made shard by shard gets to know.

    Attributes:
        shape: Shape of the shard.
        offset: Its first element in each dimension of the whole.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]


class Partitioning:
    """Divides variables as a user's partitioner says.

    Args:
        partitioner: The partitioner; None leaves all variables whole.

    Spec: PRT-1 to PRT-12.
    """

    def __init__(self, partitioner: VariablePartitioner | None) -> None:
        self._partitioner = partitioner

    @property
    def divides(self) -> bool:
        """Whether there is a partitioner."""
        return self._partitioner is not None

    def layout(self, shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Return which rows of a variable go to which shard.

        Raises:
            InvalidArgumentError: The partitioner wants something else than to divide the rows.
                Spec: PRT-2.
        """
        if self._partitioner is None or not len(shape):
            return Layout.div(shape[0] if len(shape) else 1, 1)
        counts = self._partitioner(shape=torch.Size(shape), dtype=dtype)
        if not counts or counts[0] < 1 or any(count != 1 for count in counts[1:]):
            raise InvalidArgumentError(
                "variable_partitioner must return a list whose first element is the "
                "number of shards, at least 1, and whose others are all 1, not "
                f"{counts!r} for the shape {tuple(shape)}"
            )
        return Layout.div(shape[0], max(1, min(counts[0], shape[0])))

    def initial_values(
        self, value: Any, dtype: torch.dtype | None, shape: Sequence[int] | None
    ) -> list[torch.Tensor]:
        """Return the initial value of each shard; one where there are no shards.

        Args:
            value: As for `Variable`. If it can be called, and dtype and shape are given, it may
                take `shard_info`, or `partition_shape` and `partition_offset`, and then makes each
                shard's value by itself.
            dtype: Element type; by default that of the value.
            shape: Shape of the whole; by default that of the value.

        Raises:
            InvalidArgumentError: There is no value, or it does not fit.
        """
        if value is None:
            raise InvalidArgumentError(
                "a variable cannot be partitioned without specifying `initial_value`"
            )
        made = callable(value) and not isinstance(value, torch.Tensor | TensorStandIn)
        if made and dtype is not None and shape is not None:
            layout = self.layout(shape, dtype)
            return _made_by_shard(value, dtype, tuple(shape), layout)
        whole = initial_tensor(value, dtype, shape)
        layout = self.layout(whole.shape, whole.dtype)
        if len(layout.sizes) == 1:
            return [whole]
        if not made and whole.numel() > _LARGE:
            _warn_of_size(whole.numel())
        return [rows.select(whole) for rows in layout.shards]


def shard_name(variable: str, number: int) -> str:
    """Return what a shard of a variable is called. Spec: PRT-7."""
    return f"{variable}/part_{number}"


def _made_by_shard(
    make: Callable[..., Any], dtype: torch.dtype, shape: tuple[int, ...], layout: Layout
) -> list[torch.Tensor]:
    if len(layout.sizes) == 1:
        return [initial_tensor(make, dtype, shape)]
    values: list[torch.Tensor] = []
    whole: torch.Tensor | None = None
    for rows in layout.shards:
        if whole is None:
            value = initial_tensor(_made(make, _info(shape, rows)), dtype, None)
            if value.shape == (rows.count, *shape[1:]):
                values.append(value)
                continue
            whole = initial_tensor(value, dtype, shape)
        values.append(rows.select(whole))
    return values


def _info(shape: tuple[int, ...], rows: PartRows) -> ShardInfo:
    inner = shape[1:]
    return ShardInfo((rows.count, *inner), (rows.first, *[0] * len(inner)))


def _made(make: Callable[..., Any], info: ShardInfo) -> Any:
    if _takes_shard_info(make):
        return make(shard_info=info)
    try:
        return make(partition_shape=info.shape, partition_offset=info.offset)
    except (TypeError, ValueError):
        # It makes the whole value, or the same for all shards. Spec: PRT-10.
        return make()


def _takes_shard_info(make: Callable[..., Any]) -> bool:
    try:
        return "shard_info" in signature(make).parameters
    except ValueError:  # functions that are not written in Python
        return False


def _warn_of_size(elements: int) -> None:
    _LOG.warning(
        "the initial value of a variable to be partitioned has %d elements, which are "
        "all in this process; a function that takes `shard_info` as its initial_value "
        "makes them shard by shard",
        elements,
    )


_SMALL_BYTES = 64 << 20
"""By so many bytes servers may differ for the sake of an even number of lookups."""


@dataclass(frozen=True)
class Place:
    """Where a variable goes.

    Attributes:
        server: Index of its server in the ps job.
        ordinal: Its place in the order of creation, from 0.
    """

    server: int
    ordinal: int


@dataclass(frozen=True)
class Demand:
    """What a variable needs of its server.

    Attributes:
        nbytes: Its size.
        server: Where it has to go; None to have a server chosen.
        grows: Whether its server stores only those rows of it that are written, so that nobody
            knows how many of the bytes it will come to take.
        lookups: How many lookups a step are expected: one of each table, of which a part has its
            share; none of what is read and written as a whole.
    """

    nbytes: int
    server: int | None = None
    grows: bool = False
    lookups: Fraction = Fraction(0)


class Placement(ABC):
    """Gives variables their places in the order of their creation.

    All workers create in the same order and so come to the same places. What is looked up goes to
    the server of which the fewest lookups are expected, whatever its size: a step looks up about as
    many rows of a table of a thousand as of one of a million.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._created = 0
        self._lookups = dict.fromkeys(servers, Fraction(0))

    def next(self, demand: Demand) -> Place:
        """Return the place of the next variable."""
        ordinal = self._created
        self._created += 1
        server = self._server_for(demand)
        self._lookups[server] += demand.lookups
        return Place(server, ordinal)

    @abstractmethod
    def _server_for(self, demand: Demand) -> int:
        """Choose a server, unless the demand says which."""


class RoundRobin(Placement):
    """Deals variables to the servers in turn. Spec: PS1-5, PSV-1.

    It is a turn of theirs for tables, too, though these go by their lookups.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        super().__init__(servers)
        self._dealt = 0

    def _server_for(self, demand: Demand) -> int:
        if demand.server is not None:
            return demand.server  # it is nobody's turn
        self._dealt += 1
        if demand.lookups:
            return min(self._servers, key=self._lookups.__getitem__)
        return self._servers[(self._dealt - 1) % len(self._servers)]


class Balanced(Placement):
    """Gives each variable to the server that has the fewest bytes of variables.

    Of several such servers it is the first one. Those that grow are counted by what they could
    become, and for themselves: a table of which hardly a row is written would else keep all that is
    stored as a whole off its server.

    What is looked up goes by bytes only where servers would come to differ by much.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        super().__init__(servers)
        self._loads = {grows: dict.fromkeys(servers, 0) for grows in (False, True)}

    def _server_for(self, demand: Demand) -> int:
        loads, server = self._loads[demand.grows], demand.server
        if server is None and demand.lookups:
            least = min(loads.values()) + demand.nbytes
            most = max(least, *loads.values()) + _SMALL_BYTES
            fitting = [one for one in loads if loads[one] + demand.nbytes <= most]
            server = min(fitting, key=lambda one: (self._lookups[one], loads[one]))
        elif server is None:
            server = min(loads, key=loads.__getitem__)
        loads[server] += demand.nbytes
        return server


PLACEMENTS: dict[str, type[Placement]] = {"round_robin": RoundRobin, "balanced": Balanced}
"""The placements by the names that users give them."""


def placement_named(name: str) -> type[Placement]:
    """Return a placement by its name, or refuse the name."""
    if name not in PLACEMENTS:
        raise InvalidArgumentError(
            f"placement must be one of {', '.join(PLACEMENTS)}, not {name!r}"
        )
    return PLACEMENTS[name]


def server_named(device: str) -> int | None:
    """Return the index of the server on which a device is; None if on none."""
    name = DeviceName.parse(device)
    return name.task if name.job == "ps" else None


def server_device(server: int) -> str:
    """Return the full name of the device that a server keeps variables on."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


@dataclass(frozen=True)
class VariablePlacement:
    """Where one variable lives.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: The type of its elements.
        server: The task that hosts it, as in "/job:ps/task:0".
        nbytes: Size of its value in bytes.
        slot_of: For the state of an optimizer, the name of the variable that it belongs to; else
            "".
    """

    __module__ = "stratagem"

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    server: str
    nbytes: int
    slot_of: str = ""


def placements(listing: Mapping[str, Sequence[VariableSpec]]) -> list[VariablePlacement]:
    """Return an entry for each variable of each task, in their order."""
    return [
        VariablePlacement(
            spec.name,
            tuple(spec.tensor.shape),
            decode_dtype(spec.tensor.dtype),
            task,
            nbytes_of(spec.tensor),
            spec.slot_of,
        )
        for task, specs in listing.items()
        for spec in specs
    ]
