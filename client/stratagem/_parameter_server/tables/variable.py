"""Tables: variables on servers of which this process has only what it looks up or prefetches."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import torch
from torch import nn

from stratagem._core.assignment import Write
from stratagem._core.contexts import current_replica_id
from stratagem._core.tensors import IndexedSlices, require_integers
from stratagem._core.variable_creation import VariableTraits, operand
from stratagem._core.variables import Variable
from stratagem._parameter_server.tables.joint_lookup import (
    JointLookup,
    Lookup,
    SummedGradient,
    Wanted,
)
from stratagem._parameter_server.tables.lookup import PulledRows, added_up
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.variables.shards import Layout, Routed, merge
from stratagem._parameter_server.variables.variable import SplitVariable, ValuesOfRows
from stratagem_proto.division import part_of_keys
from stratagem_proto.errors import (
    ContextError,
    InvalidArgumentError,
    RowIndexError,
    UnimplementedError,
)
from stratagem_proto.rows import ascending_order
from stratagem_proto.v1.variable_pb2 import (
    EVICTION_ORDER_OLDEST,
    EVICTION_ORDER_RAREST,
    DynamicKeys,
    EvictionOrder,
    TableSpec,
    VariableSpec,
)

if TYPE_CHECKING:
    from stratagem._hosting.hosted_parameter import HostedParameter
    from stratagem._parameter_server.tables.tables import TableShard
    from stratagem._parameter_server.variables.variable import AnyStore

_WRITTEN_AT_ONCE_BYTES = 16 << 20
"""Of a table that is too large to be read whole, so much is written by one request."""

RowsByTable = Mapping["TableVariable", torch.Tensor]
"""Rows of tables of one strategy: int64 vectors, ascending, without repetitions."""


def read_rows(wanted: RowsByTable, training: bool = False) -> list[torch.Tensor]:
    """Return rows of tables as they are now; those of a training step may be rounded."""
    routed = [table.layout.route(rows) for table, rows in wanted.items()]
    asked = [list(_reads_of_parts(*one)) for one in zip(wanted, routed, strict=True)]
    found = _found(wanted, list(chain.from_iterable(asked)), training)
    return [
        merge([next(found) for _ in parts] or [table.no_rows], shares)
        for table, parts, shares in zip(wanted, asked, routed, strict=True)
    ]


def pull_missing(wanted: RowsByTable, training: bool) -> None:
    """Let tables have rows until the run ends; those that they have are not read.

    Their `pulling` is held.
    """
    new = {table: table.pulled.missing(rows) for table, rows in wanted.items()}
    missing = {table: rows for table, rows in new.items() if len(rows)}
    for table, values in zip(missing, read_rows(missing, training), strict=True):
        table.pulled.add(missing[table], values)


def _reads_of_parts(
    table: TableVariable, shares: list[Routed]
) -> Iterator[tuple[TableShard, torch.Tensor]]:
    for part, share in zip(table.parts, shares, strict=True):
        if len(share.rows):
            yield part, share.rows


def _found(
    wanted: RowsByTable, asked: list[tuple[TableShard, torch.Tensor]], training: bool
) -> Iterator[torch.Tensor]:
    if not asked:
        return iter(())
    (store,) = {table.store for table in wanted}
    parts, rows = [part for part, _ in asked], [rows for _, rows in asked]
    return iter(store.rows(parts, rows, training))


class Loading(Protocol):
    """What becomes of values that the program of one task sets."""

    def set_table(
        self, table: TableVariable, value: torch.Tensor, write: Callable[[], None]
    ) -> None:
        """Write a whole value by `write` if this task does that; otherwise hold it."""

    def agree_on(self, table: TableVariable) -> None:
        """Require that what is held of a table has become its value."""


@dataclass(frozen=True)
class TableAccess:
    """What a process may do with a table as a whole.

    Attributes:
        nbytes: The most bytes that it reads.
        loading: Sees to it that what it sets agrees with what the chief does.
    """

    nbytes: float
    loading: Loading


class TableVariable(SplitVariable):
    """A variable whose rows are pulled from the servers when they are looked up.

    Attributes:
        store: Where it is kept.
        reach: What this process may do with it as a whole.
        pulled: The rows that the run of the replicas has looked up so far.
        pulling: To be held while that is read or written.
        summed: The gradient that was last handed to autograd, if it is added up already.
        row_kind: Whether rows have keys, in place of numbers from 0; their shape and dtype.
    """

    parts: tuple[TableShard, ...]
    pulled: PulledRows
    summed: SummedGradient | None

    def __init__(
        self,
        store: AnyStore,
        traits: VariableTraits,
        parts: Sequence[TableShard],
        layout: Layout,
        reach: TableAccess,
    ) -> None:
        super().__init__(traits, parts, layout)
        self.store = store
        self.reach = reach
        # Asked for several times in each lookup.
        self.row_kind = layout.coding is None, self.shape[1:], self.dtype
        self._hosted: HostedParameter | None = None
        self.pulling = threading.Lock()
        self.forget()

    @property
    def is_dense(self) -> bool:
        """Whether the servers store all rows, written or not."""
        return self.parts[0].is_dense

    @property
    def has_keys(self) -> bool:
        """Whether its rows have keys, in place of numbers from 0."""
        return self.row_kind[0]

    @property
    def is_readable(self) -> bool:
        """Whether it is small enough to be read whole."""
        return self.shape.numel() * self.dtype.itemsize <= self.reach.nbytes

    def show_in(self, hosted: HostedParameter) -> None:
        """Note which parameter of a module stands for it."""
        self._hosted = hosted

    def value(self) -> torch.Tensor:
        """Return the parameter of the replica that this thread runs."""
        assert self._hosted is not None
        return self._hosted.leaf()

    def _is_seen_as(self, tensor: torch.Tensor) -> bool:
        leaves = () if self._hosted is None else self._hosted.leaves
        return any(leaf is tensor for leaf in leaves)

    def __repr__(self) -> str:
        return (
            f"<Table {self.name!r} shape={tuple(self.shape)} dtype={self.dtype} on "
            f"{len(self.parts)} servers>"
        )

    # Reading.

    def pull(self, rows: torch.Tensor, training: bool) -> torch.Tensor:
        """Return rows: in a replica as they were when its run first looked them up.

        They are an int64 vector, ascending and without repetitions, on the CPU.
        """
        self.require_rows(rows)
        if current_replica_id() is None:
            self.reach.loading.agree_on(self)
            return read_rows({self: rows})[0]
        with self.pulling:
            return self.pulled_or_missing(rows, training)

    def pulled_or_missing(self, rows: torch.Tensor, training: bool) -> torch.Tensor:
        """Return distinct rows as the run first looked them up; `pulling` is held."""
        pull_missing({self: rows.sort().values}, training)
        return self.pulled.values_of(rows)

    def look_up(self, leaf: torch.Tensor, ids: torch.Tensor, training: bool) -> Lookup:
        """Return what a lookup finds; what was prefetched for it, if it was."""
        require_integers(ids, self.name)
        replica = current_replica_id()
        if replica is None:
            self.reach.loading.agree_on(self)
        waiting = self._prefetched.get(replica, [])
        for place, one in enumerate(waiting):
            if one.is_of(leaf, ids, training):
                return waiting.pop(place)
        joint = JointLookup([Wanted(self, leaf, ids)], training)
        (found,) = joint.read() if replica is None else joint.pulled()
        return found

    def prefetched(self, lookup: Lookup, replica: int | None = None) -> None:
        """Keep a lookup until the program does it, or its run ends.

        It is of a replica of the run that begins, or by default of the one that is running.
        """
        number = current_replica_id() if replica is None else replica
        self._prefetched.setdefault(number, []).append(lookup)

    def has_prefetched(self, wanted: Wanted, training: bool) -> bool:
        """Return whether a lookup of this replica waits for the program to do it."""
        waiting = self._prefetched.get(current_replica_id(), [])
        return any(one.is_of(wanted.leaf, wanted.ids, training) for one in waiting)

    def forget(self) -> None:
        """Pull rows anew from now on."""
        _, shape, dtype = self.row_kind
        self.pulled = PulledRows(shape, dtype)
        self.summed = None
        self._prefetched: dict[int | None, list[Lookup]] = {}

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the parameter by which their gradients go."""
        return rows

    def stepped_rows(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Return the rows that a gradient steps, perhaps repeatedly; None for all."""
        return gradient._indices()[0] if gradient.is_sparse else None

    @property
    def evicts(self) -> bool:
        """Whether a step may evict rows that it does not have."""
        return False

    def require_rows(self, rows: torch.Tensor) -> None:
        """Refuse ascending rows that the table does not have."""
        total = self.layout.total
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < total:
            raise RowIndexError(
                f"rows {int(rows[0])} to {int(rows[-1])} of {self.name!r} are looked "
                f"up; it has {total} rows, from 0",
                variable=self.name,
            )

    @property
    def no_rows(self) -> torch.Tensor:
        """What a read of no rows returns."""
        return torch.empty(0, *self.shape[1:], dtype=self.dtype)

    @property
    def whole_rows(self) -> torch.Tensor:
        """The numbers of all rows."""
        return torch.arange(self.layout.total)

    def read_whole(self) -> torch.Tensor:
        """Return the value, unless it is too large."""
        if not self.is_readable:
            raise InvalidArgumentError(
                f"{self!r} is too large for what reads or writes all of it, as state_dict() and "
                f"copies do: it takes more than the {self.reach.nbytes:.0f} bytes of "
                "scope(meta_above=...). To initialise it, do so in strategy.scope(), where the "
                "module is built: there, servers compute its rows. What was trained is on the "
                "servers: strategy.export(module, PATH) writes a file that plain PyTorch loads, "
                "and strategy.save(FOLDER) a checkpoint. Single rows come by "
                "torch.nn.functional.embedding",
                variable=self.name,
            )
        return self.pull(self.whole_rows, training=False)

    def keys(self, limit: int) -> Iterator[torch.Tensor]:
        """Yield the numbers, or keys, of the stored rows, at most so many at a time."""
        for part, rows in zip(self.parts, self.layout.shards, strict=True):
            for numbers in self.store.keys(part, limit):
                yield rows.whole(numbers)

    def undivided(self, name: str) -> VariableSpec:
        """Return the description of all of it in one part, under a name."""
        spec = self.parts[0].spec
        spec.ClearField("partition")
        spec.name = name
        if self.has_keys:
            keys = spec.table.dynamic
            keys.part, keys.parts = 0, 1
            keys.max_bytes *= len(self.parts)
        else:
            spec.tensor.shape[0] = self.layout.total
        return spec

    def present(self) -> torch.Tensor:
        """Return the value that the servers have, whatever is held here."""
        return read_rows({self: self.whole_rows})[0]

    # Writing.

    def gradients(self, gradient: torch.Tensor) -> Sequence[ValuesOfRows]:
        """Return the gradient of each part; repeated rows are added up before."""
        summed = self.summed
        if gradient.is_sparse and summed is not None and summed.is_memory_of(gradient):
            return summed.shares()
        return self._routed(gradient)

    def _routed(self, gradient: torch.Tensor) -> Sequence[ValuesOfRows]:
        if gradient.is_sparse:
            return self._divided(*added_up(gradient))
        if self.is_dense:
            return super().gradients(gradient)
        # Servers take no dense gradient of what they store by rows.
        return self._divided(gradient, self.whole_rows)

    def replace(self, value: torch.Tensor) -> None:
        """Write the whole value, as assigning to a parameter does; not in a replica."""
        if current_replica_id() is not None:
            raise ContextError(
                f"parameter {self.name!r} was written in a replica, where each step "
                "would lose it again; write parameters outside of run(), or change "
                "them by an optimizer"
            )
        whole = operand(self, value).detach()
        self.reach.loading.set_table(self, value, partial(self._assign, whole))

    def _assign(self, whole: torch.Tensor) -> None:
        if self.is_readable:
            self._write(Write.ASSIGN, whole)
            return
        # It may be in a file that is mapped, of which no more is in memory than what is on its way.
        size = self.shape[1:].numel() * self.dtype.itemsize
        for rows in self.whole_rows.split(max(1, _WRITTEN_AT_ONCE_BYTES // max(1, size))):
            first, last = int(rows[0]), int(rows[-1])
            self._write(Write.ASSIGN, IndexedSlices(whole[first : last + 1], rows))

    def _write(self, write: Write, value: Any) -> None:
        values: list[Any]
        if isinstance(value, IndexedSlices):
            values = self._shares(value)
        else:
            whole = operand(self, value).detach()
            values = [rows.select(whole) for rows in self.layout.shards]
        pairs = zip(self.parts, values, strict=True)
        self.store.table_changes += 1
        self.store.write({part: part.writing(write, one) for part, one in pairs})
        self.forget()


def require_whole_state(variables: Iterable[Variable]) -> None:
    """Refuse tables of which servers store the written rows, whose state cannot be read whole."""
    for variable in variables:
        if isinstance(variable, TableVariable) and not variable.is_dense:
            raise UnimplementedError(
                f"the optimizer's state for {variable!r} is stored by rows beside the "
                "table and has no place in a state dict; strategy.save(FOLDER) has it, and "
                "strategy.export(module, PATH) writes the values alone. To keep the state of the "
                "others by state_dict(), give the table an optimizer of its own",
                variable=variable.name,
            )


def require_no_table(variables: Iterable[Variable]) -> None:
    """Refuse tables, of which no process has a copy, to workers."""
    for variable in variables:
        if isinstance(variable, TableVariable):
            raise InvalidArgumentError(
                f"{variable.name!r} is a table, whose rows stay on the servers: give it a "
                "DistributedOptimizer of its own, and leave the dense parameters to the workers",
                variable=variable.name,
            )


def prefetch(lookups: Iterable[tuple[nn.Module | torch.Tensor, torch.Tensor]]) -> None:
    """Pull the rows of many lookups that are to come, by one request of each server.

    A lookup takes a round trip to the servers. This takes one for all together, which then find the
    rows here::

        def forward(self, users, items):
            stratagem.nn.prefetch([(self.users, users), (self.items, items)])
            return (self.users(users) * self.items(items)).sum(1)

    What is no table on servers is left out; outside of replicas, where nothing is kept, it does
    nothing.

    Args:
        lookups: What is looked up in, an embedding or its weight, and the rows or keys: an integer
            tensor of any shape. A table may come several times.

    Raises:
        RowIndexError: There is no such row.
        InvalidTypeError: An input is no tensor of integers.
    """
    if current_replica_id() is None:
        return
    # Each leaf of a table has its own gradient; those of a second one are looked up by themselves.
    leaves: dict[TableVariable, torch.Tensor] = {}
    wanted: dict[tuple[bool, int], list[Wanted]] = defaultdict(list)
    for embedding, ids in lookups:
        leaf: Any = embedding.weight if isinstance(embedding, nn.Module) else embedding
        table = leaf.source if isinstance(leaf, TableParameter) else None
        if not isinstance(table, TableVariable):
            continue
        require_integers(ids, table.name)
        if leaves.setdefault(table, leaf) is leaf:
            training = leaf.requires_grad and torch.is_grad_enabled()
            one = Wanted(table, leaf, ids)
            if not table.has_prefetched(one, training):
                wanted[training, id(table.store)].append(one)
    for (training, _), each in wanted.items():
        for lookup in JointLookup(each, training).pulled():
            lookup.wanted.table.prefetched(lookup)


# The fields of `DynamicKeys` that have no row evicted.
_KEEPS_ROWS = {"admission_count", "part", "parts", "eviction_order"}

NOMINAL_ROWS = 1 << 40
"""How many rows the parameter of a dynamic table says that it has."""

EVICTION_ORDERS: Mapping[str, EvictionOrder] = {
    "oldest": EVICTION_ORDER_OLDEST,
    "rarest": EVICTION_ORDER_RAREST,
}


@dataclass(frozen=True)
class KeyLimits:
    """Which keys get rows, and which rows go again. Spec: the fields of `DynamicKeys`.

    Attributes:
        admit_after: Number of updates of a key from which on it has a row.
        max_idle: Number of writes of the table after which a row that they did not touch goes; None
            for never.
        max_bytes: The most bytes on all servers together; None for no limit.
        max_idle_seconds: For how many seconds a row may be idle before it goes; None for ever.
        evict: Which rows make room for new ones: "oldest" or "rarest".
    """

    admit_after: int = 1
    max_idle: int | None = None
    max_bytes: int | None = None
    max_idle_seconds: float | None = None
    evict: str = "oldest"

    def of_part(self, part: int, parts: int) -> TableSpec:
        """Return what one of the parts of a table is told."""
        return TableSpec(
            dynamic=DynamicKeys(
                admission_count=self.admit_after,
                evict_after_writes=self.max_idle or 0,
                max_bytes=max(1, self.max_bytes // parts) if self.max_bytes else 0,
                part=part,
                parts=parts,
                evict_after_milliseconds=math.ceil((self.max_idle_seconds or 0) * 1000),
                eviction_order=EVICTION_ORDERS[self.evict],
            )
        )


class KeyLayout(Layout):
    """Which part has which keys."""

    @property
    def coding(self) -> None:
        """There may be any keys."""

    def route(self, rows: torch.Tensor) -> list[Routed]:
        """Return for each part which of some keys it has."""
        parts = part_of_keys(rows, len(self.sizes))
        order = ascending_order(parts)
        counts = torch.bincount(parts, minlength=len(self.sizes)).tolist()
        return [Routed(places, rows[places]) for places in order.split(counts)]


class Vocabulary:
    """Numbers keys in the order in which they come."""

    def __init__(self) -> None:
        self._keys = torch.empty(0, dtype=torch.int64)
        self._given: list[ref[torch.Tensor]] = []

    def numbers(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the numbers of distinct keys; new ones get the next numbers."""
        known = torch.isin(keys, self._keys, assume_unique=True)
        self._keys = torch.cat([self._keys, keys[~known]])
        ordered, numbers = self._keys.sort()
        found = numbers[torch.searchsorted(ordered, keys)]
        self._given = [one for one in self._given if one() is not None] + [ref(found)]
        return found

    @property
    def is_in_graphs(self) -> bool:
        """Whether there are graphs whose gradients will go by its numbers."""
        return any(one() is not None for one in self._given)

    def keys(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the keys that have these numbers."""
        return self._keys[numbers]


class DynamicTable(TableVariable):
    """A table whose rows are any int64 keys.

    torch has no sparse tensors of such size, so gradients go by the numbers that this process gives
    to keys, for as long as there are gradients.
    """

    @property
    def is_readable(self) -> bool:
        return False

    def read_whole(self) -> torch.Tensor:
        """Refuse to."""
        raise InvalidArgumentError(
            f"{self.name!r} has rows of keys, and so no end, and there is nothing for what reads "
            "or writes all of it, as state_dict() and copies do. What was trained is written by "
            "strategy.export(module, PATH, stored_rows=True), or as a checkpoint by "
            "strategy.save(FOLDER). Single rows come by torch.nn.functional.embedding",
            variable=self.name,
        )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._vocabulary = Vocabulary()

    @property
    def _is_numbered(self) -> bool:
        """Whether there are gradients by the numbers of keys, or may be yet."""
        leaves = () if self._hosted is None else self._hosted.leaves
        has_gradients = any([leaf.grad is not None and leaf.grad._nnz() for leaf in leaves])
        return has_gradients or self._vocabulary.is_in_graphs

    def keys(self, limit: int) -> Iterator[torch.Tensor]:
        """Yield the keys that have rows, at most so many at a time."""
        for part in self.parts:
            yield from self.store.keys(part, limit)

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        with self.pulling:
            if not self._is_numbered:
                self._vocabulary = Vocabulary()
            return self._vocabulary.numbers(rows)

    def stepped_rows(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return self._vocabulary.keys(gradient._indices()[0])

    @cached_property
    def evicts(self) -> bool:
        limits = self.parts[0].spec.table.dynamic
        return any(limited.name not in _KEEPS_ROWS for limited, _ in limits.ListFields())

    def require_rows(self, rows: torch.Tensor) -> None:
        """Any key will do."""

    def _routed(self, gradient: torch.Tensor) -> Sequence[ValuesOfRows]:
        values, numbers = added_up(gradient)
        return self._divided(values, self._vocabulary.keys(numbers))
