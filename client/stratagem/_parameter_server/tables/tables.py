"""Making tables of large and of sparse parameters, with a part on each server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn import Parameter
from torch.utils import swap_tensors

from stratagem._core.assignment import Write
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variable_creation import VariableTraits
from stratagem._gradients import OptimizerStep
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosted_parameter import HostedParameter
from stratagem._hosting.replica_views import ParameterRegistry
from stratagem._parameter_server.hosting.creation import RemoteCreation
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.tables.parameter import TableParameter, TableView
from stratagem._parameter_server.tables.recording import AllocationRecorder, InitialRows, taken_rows
from stratagem._parameter_server.tables.variable import (
    DynamicTable,
    KeyLayout,
    KeyLimits,
    Loading,
    TableAccess,
    TableVariable,
)
from stratagem._parameter_server.variables.shards import (
    Demand,
    Layout,
    Partitioning,
    Place,
    shard_name,
)
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable
from stratagem._ps_client.requests.reads import Reading
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.division import PartRows
from stratagem_proto.errors import InternalError, InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import Initializer, Partition, TableSpec, VariableSpec
from stratagem_proto.wire.tensors import encode_dtype

if TYPE_CHECKING:
    from stratagem._hosting.hosted_parameter import HostedParameter
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

    has_copy = False

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


class HostedTable(HostedParameter):
    """A module's parameter whose values are read and written where they are.

    There is no copy to be kept equal; each replica has a parameter of its own for the sake of its
    gradient.
    """

    is_here = False

    def __init__(
        self, table: TableVariable, parameter: TableParameter, devices: Sequence[torch.device]
    ) -> None:
        parameter.source, parameter.initial = table, None
        others = [TableParameter.another(table, parameter) for _ in devices[1:]]
        super().__init__(table, parameter, devices, others)
        self._table = table
        table.show_in(self)

    def written_locally(self) -> bool:
        """Give the servers what a module was given in the parameter's place."""
        for parameter in list(self._replacements()):
            self._table.replace(parameter.detach())
            self._replace(self.parameter)
        for leaf in self.leaves[1:]:
            leaf.requires_grad_(self.parameter.requires_grad)
        return False

    def accept_everywhere(self) -> None:
        """There is nothing that could be behind."""

    def accept(self) -> None:
        """There is nothing that could be behind."""


META_ABOVE = 256 << 20
"""Bytes of memory that a parameter takes at most, unless the user says otherwise."""

_LEAST_SHARD_BYTES = 256 << 10
"""Smaller parts of a table are not worth a request to another server."""


class Tables:
    """The tables of a strategy: parameters that are read and written by rows.

    Tables are the parameters that are too large for this process, and the weights of embeddings
    with sparse gradients.
    """

    def __init__(
        self,
        store: RemoteStore,
        loading: Loading,
        partitioning: Partitioning,
        parameters: ParameterRegistry,
    ) -> None:
        self._store = store
        self._loading = loading
        self._partitioning = partitioning
        self._parameters = parameters
        self._tables: list[TableVariable] = []
        self._readable_nbytes: float = META_ABOVE

    def __iter__(self) -> Iterator[TableVariable]:
        return iter(self._tables)

    @contextmanager
    def scope(self, resources: AbstractContextManager[object], meta_above: float) -> Iterator[None]:
        """Make tables of parameters of more than `meta_above` bytes that are built meanwhile."""
        self._readable_nbytes = meta_above
        with AllocationRecorder(meta_above), resources:
            yield

    # Making tables.

    def prepare(self, adoption: Adoption) -> None:
        """Turn a parameter that is to be a table into one."""
        parameter, is_made_there = adoption.parameter, take_rows(adoption)
        if isinstance(parameter, TableView):
            _become(parameter, Parameter(parameter.detach().clone(), parameter.requires_grad))
        if is_made_there or isinstance(parameter, TableParameter):
            return
        if _is_sparse_weight(adoption):
            _become(parameter, _of_value(parameter))

    def placed(self, creation: RemoteCreation, adoption: Adoption) -> TableVariable:
        """Return the variable of a `TableParameter`, which does not exist yet."""
        parameter = cast(TableParameter, adoption.parameter)
        limits = _limits(adoption)
        contents = _contents(parameter, limits)
        layout = self._layout(parameter, limits)
        _require_row_dtype(adoption, parameter)
        parts = [
            _placed_shard(creation, adoption, part, self._demand(parameter, part, layout))
            for part in _parts(layout, contents, limits)
        ]
        make = TableVariable if limits is None else DynamicTable
        access = TableAccess(self._readable_nbytes, self._loading)
        return make(self._store, _traits(adoption), parts, layout, access)

    def _layout(self, parameter: TableParameter, limits: KeyLimits | None) -> Layout:
        if limits is not None:
            return KeyLayout((0,) * len(self._store.servers))
        if self._partitioning.divides or isinstance(parameter.initial, torch.Tensor):
            return self._partitioning.layout(parameter.shape, parameter.dtype)
        rows, nbytes = parameter.shape[0], parameter.shape.numel() * parameter.itemsize
        most = min(len(self._store.servers), rows)
        return Layout.in_turn(rows, max(1, min(most, nbytes // _LEAST_SHARD_BYTES)))

    def _demand(self, parameter: TableParameter, part: _Part, layout: Layout) -> Demand:
        lookups = Fraction(1, len(layout.sizes))
        if part.spec is None:
            grows = isinstance(parameter.initial, InitialRows)
            return Demand(part.value.nbytes, grows=grows, lookups=lookups)
        # It has as many parts as there are servers, and nobody knows their sizes.
        servers, keys = self._store.servers.used, part.spec.dynamic
        server = servers[keys.part % len(servers)]
        return Demand(keys.max_bytes, server, grows=True, lookups=lookups)

    def host(self, table: TableVariable, adoption: Adoption) -> HostedParameter:
        """Let modules see a table by the parameter that it was made of."""
        assert isinstance(adoption.parameter, TableParameter)
        hosted = HostedTable(table, adoption.parameter, self._parameters.devices)
        self._tables.append(table)
        return self._parameters.host(hosted, adoption.owners)

    def remove(self, names: Collection[str]) -> None:
        """Know nothing of tables of these names any more."""
        self._tables = [table for table in self._tables if table.name not in names]

    # Steps.

    def forget(self, step: OptimizerStep | None = None) -> None:
        """Have rows pulled anew, of the tables that a step has changed or of all."""
        if not self._tables:
            return
        stepped = step and {one.name for group in step.groups for one in group.variables}
        for table in self._tables:
            if stepped is None or table.name in stepped:
                table.forget()


def _is_sparse_weight(adoption: Adoption) -> bool:
    return any(
        isinstance(module, nn.Embedding | nn.EmbeddingBag) and key == "weight" and module.sparse
        for module, key in adoption.owners
    )


def take_rows(adoption: Adoption) -> bool:
    """Turn a parameter without memory into what has rows made for it; return whether it is one."""
    parameter = adoption.parameter
    rows = taken_rows(parameter, f"parameter {adoption.name!r} of {adoption.module_path}")
    if rows is None:
        return False
    _become(parameter, _of_rows(adoption, rows))
    return True


def table_of_keys(
    store: AnyStore, ordinal: int, adoption: Adoption, loading: Loading
) -> DynamicTable:
    """Return the table, in one part, of a `DynamicEmbedding`, which does not exist yet."""
    limits = _limits(adoption)
    if limits is None:
        raise InvalidArgumentError(
            f"parameter {adoption.name!r} of {adoption.module_path} has no memory, and is not that "
            "of a DynamicEmbedding any more; keep the module whose `weight` it is",
            variable=adoption.name,
        )
    parameter = cast(TableParameter, adoption.parameter)
    _require_row_dtype(adoption, parameter)
    layout = KeyLayout((0,))
    (part,) = _parts(layout, _contents(parameter, limits), limits)
    make, traits, owner = _shard(adoption, part)
    shard = make(store, Place(0, ordinal), traits, part.value, owner)
    return DynamicTable(store, _traits(adoption), [shard], layout, TableAccess(META_ABOVE, loading))


def _of_rows(adoption: Adoption, rows: InitialRows) -> Parameter:
    """What a parameter without memory is to be, with the values of these rows."""
    parameter = adoption.parameter
    if _is_dense_in_torch(adoption) or not parameter.dim():
        return Parameter(rows.made_here(parameter), parameter.requires_grad)
    made = TableParameter(parameter.shape, parameter.dtype, parameter.requires_grad)
    made.initial = rows
    return made


def _of_value(parameter: Parameter) -> TableParameter:
    made = TableParameter(parameter.shape, parameter.dtype, parameter.requires_grad)
    made.initial = parameter.detach()
    return made


def _is_dense_in_torch(adoption: Adoption) -> bool:
    """Whether modules of torch have a parameter that do not look rows up in it."""
    return any(
        type(module).__module__.startswith("torch.")
        and not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for module, _ in adoption.owners
    )


def _become(parameter: Parameter, other: Parameter) -> None:
    """Let a parameter be another one, wherever it is referred to already."""
    swap_tensors(parameter, other)


def _limits(adoption: Adoption) -> KeyLimits | None:
    """What limits the keys of a dynamic table; None if it is none."""
    for module, _ in adoption.owners:
        limits = getattr(module, "limits", None)
        if isinstance(limits, KeyLimits):
            return limits
    return None


def _row_dtype(adoption: Adoption) -> torch.dtype | None:
    """What the rows of a table are to be stored in; None for their own dtype."""
    wanted = {getattr(module, "row_dtype", None) for module, _ in adoption.owners} - {None}
    if len(wanted) > 1:
        raise InvalidArgumentError(
            f"parameter {adoption.name!r} is shared by modules with rows of {wanted}; build all "
            "of them with the same row_dtype",
            variable=adoption.name,
        )
    return wanted.pop() if wanted else None


def _require_row_dtype(adoption: Adoption, parameter: TableParameter) -> None:
    if (row_dtype := _row_dtype(adoption)) is None:
        return
    given = isinstance(parameter.initial, torch.Tensor)
    if given or parameter.dtype != torch.float32:
        why = "has a whole value" if given else f"is {parameter.dtype}"
        raise InvalidArgumentError(
            f"parameter {adoption.name!r} is to have rows of {row_dtype}, but it {why}; servers "
            "round the float32 rows that they make themselves. Initialise it with torch.nn.init, "
            "or leave row_dtype out",
            variable=adoption.name,
        )


def _contents(parameter: TableParameter, limits: KeyLimits | None) -> torch.Tensor:
    """The initial value, or a plain tensor of its shape without memory."""
    if isinstance(parameter.initial, torch.Tensor):
        return parameter.initial
    rows = parameter.shape[0] if limits is None else 0
    empty = torch.empty((), dtype=parameter.dtype)
    return empty.expand(rows, *parameter.shape[1:])


class _Part(NamedTuple):
    """A part of a table.

    Attributes:
        suffix: What its name ends with.
        shard: Which part it is; None if it is the whole table.
        value: Its initial value, or a tensor of that shape.
        spec: Which keys it may have; None if its rows have numbers.
    """

    suffix: str
    shard: TablePart | None
    value: torch.Tensor
    spec: TableSpec | None


def _parts(layout: Layout, contents: torch.Tensor, limits: KeyLimits | None) -> list[_Part]:
    count = len(layout.sizes)
    specs = [limits.of_part(n, count) if limits else None for n in range(count)]
    if count == 1:
        return [_Part("", None, contents, specs[0])]
    return [
        _Part(
            shard_name("", number),
            TablePart(layout, number, tuple(contents.shape[1:])),
            rows.select(contents),
            specs[number],
        )
        for number, rows in enumerate(layout.shards)
    ]


def _placed_shard(
    creation: RemoteCreation, adoption: Adoption, part: _Part, demand: Demand
) -> TableShard:
    make, traits, owner = _shard(adoption, part)
    return creation.made(make, traits, part.value, owner, demand)


def _shard(
    adoption: Adoption, part: _Part
) -> tuple[Callable[..., TableShard], VariableTraits, Owner]:
    """Return what makes a part of a table, with its traits and what it belongs to."""
    initial = cast(TableParameter, adoption.parameter).initial
    make: Callable[..., TableShard] = TableShard
    if isinstance(initial, InitialRows):
        spec = part.spec or TableSpec()
        if row_dtype := _row_dtype(adoption):
            spec.row_dtype = encode_dtype(row_dtype)
        make = partial(make, lazy=LazyRows(initial.initializer(), spec))
    traits = _traits(adoption)
    named = replace(traits, name=traits.name + part.suffix)
    return make, named, Owner(adoption.module_path, part.shard)


def _traits(adoption: Adoption) -> VariableTraits:
    return VariableTraits.with_defaults(adoption.name, adoption.parameter.requires_grad)
