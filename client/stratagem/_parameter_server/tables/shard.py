"""The parts of tables, one on each server, and reading rows of several at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from stratagem._core.assignment import Write
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variable_creation import VariableTraits
from stratagem._parameter_server.variables.placement import Place
from stratagem._parameter_server.variables.shards import Layout, Routed, merge
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable
from stratagem._ps_client.requests.reading import Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.division import PartRows
from stratagem_proto.errors import InternalError
from stratagem_proto.v1.variable_pb2 import Initializer, Partition, TableSpec, VariableSpec

if TYPE_CHECKING:
    from stratagem._hosting.hosted_parameter import HostedParameter
    from stratagem._parameter_server.tables.variable import TableVariable
    from stratagem._parameter_server.variables.variable import AnyStore


class LazyRows(NamedTuple):
    """Rows that a server makes itself, and stores once they were written.

    Attributes:
        initializer: How it makes them.
        table: Which rows there may be.
    """

    initializer: Initializer
    table: TableSpec


class TablePart(NamedTuple):
    """Which part of a table one is.

    Attributes:
        layout: How the table is divided, which all its parts share.
        number: Which of these parts it is.
        row_shape: The shape of a row.
    """

    layout: Layout
    number: int
    row_shape: tuple[int, ...]

    @property
    def rows(self) -> PartRows:
        """Its rows."""
        return self.layout.shards[self.number]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return (self.layout.total, *self.row_shape)

    @property
    def message(self) -> Partition:
        """How servers know it."""
        return self.rows.partition(self.shape)


class TableShard(RemoteVariable):
    """A variable on a server of which this process has no copy.

    Its initial value is dropped once it is there, or is a tensor without values, of its shape and
    dtype, if the server makes `lazy` rows itself.
    """

    def __init__(
        self,
        store: AnyStore,
        place: Place,
        traits: VariableTraits,
        value: torch.Tensor,
        owner: Owner,
        lazy: LazyRows | None = None,
    ) -> None:
        super().__init__(store, place, traits, value, owner)
        self._nothing = torch.empty((), dtype=value.dtype).expand(value.shape)
        self._lazy = lazy

    @property
    def spec(self) -> VariableSpec:
        spec = super().spec
        if self._lazy is not None:
            spec.initializer.CopyFrom(self._lazy.initializer)
            spec.table.CopyFrom(self._lazy.table)
        return spec

    @property
    def is_dense(self) -> bool:
        """Whether the server stores all rows."""
        return self._lazy is None

    @property
    def has_copy(self) -> bool:
        return False

    @property
    def leaf(self) -> torch.Tensor:
        return self._own_leaf

    def value(self) -> torch.Tensor:
        raise self._has_none()

    def reading(
        self, narrowed_to: torch.dtype | None = None, into: torch.Tensor | None = None
    ) -> Reading:
        raise self._has_none()

    def __repr__(self) -> str:
        return f"<TableShard {self.name!r} shape={tuple(self.shape)} dtype={self.dtype}>"

    def _has_none(self) -> InternalError:
        return InternalError(f"there is no copy of {self.name!r}, a part of a table")

    def outdate(self) -> None:
        super().outdate()
        self._store.table_changes += 1

    def show_in(self, hosted: HostedParameter) -> None:
        """Drop the initial value, which is on the server now."""
        self._own_leaf = self._nothing

    def follow(self, server: int, spec: VariableSpec) -> None:
        """Let the table be divided as it is on the servers, which may be in another way."""
        part = self._owner.shard
        if isinstance(part, TablePart):
            part.layout.follow(spec.partition.HasField("interleaved"))
        self.place = Place(server, self.place.ordinal)

    def writing(self, write: Write, value: Any) -> Writing:
        if not self.is_dense and not isinstance(value, IndexedSlices):
            value = IndexedSlices(value, torch.arange(self.shape[0]))
        return super().writing(write, value)


Wanted = Mapping["TableVariable", torch.Tensor]
"""Rows of tables of one strategy: int64 vectors, ascending, without repetitions."""


def read_rows(wanted: Wanted, training: bool = False) -> list[torch.Tensor]:
    """Return rows of tables as they are now; those of a training step may be rounded."""
    routed = [table.layout.route(rows) for table, rows in wanted.items()]
    asked = [list(_asked(*one)) for one in zip(wanted, routed, strict=True)]
    found = _found(wanted, list(chain.from_iterable(asked)), training)
    return [
        merge([next(found) for _ in parts] or [table.no_rows], shares)
        for table, parts, shares in zip(wanted, asked, routed, strict=True)
    ]


def pull_missing(wanted: Wanted, training: bool) -> None:
    """Let tables have rows until the run ends; those that they have are not read.

    Their `pulling` is held.
    """
    new = {table: table.pulled.missing(rows) for table, rows in wanted.items()}
    missing = {table: rows for table, rows in new.items() if len(rows)}
    for table, values in zip(missing, read_rows(missing, training), strict=True):
        table.pulled.add(missing[table], values)


def _asked(table: TableVariable, shares: list[Routed]) -> Iterator[tuple[TableShard, torch.Tensor]]:
    for part, share in zip(table.parts, shares, strict=True):
        if len(share.rows):
            yield part, share.rows


def _found(
    wanted: Wanted, asked: list[tuple[TableShard, torch.Tensor]], training: bool
) -> Iterator[torch.Tensor]:
    if not asked:
        return iter(())
    (store,) = {table.store for table in wanted}
    parts, rows = [part for part, _ in asked], [rows for _, rows in asked]
    return iter(store.rows(parts, rows, training))
