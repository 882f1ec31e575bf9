"""The part of a strategy that makes tables of large and of sparse parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn import Parameter
from torch.utils import swap_tensors

from stratagem._core.variables.traits import VariableTraits
from stratagem._gradients.step import OptimizerStep
from stratagem._hosting.modules.adoption import Adoption
from stratagem._hosting.modules.hosting import HostedParameter
from stratagem._parameter_server.hosting.creation import RemoteCreation
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.partitioned_extended import PartitionedExtended
from stratagem._parameter_server.tables.dynamic import (
    DynamicTable,
    KeyLayout,
    KeyLimits,
)
from stratagem._parameter_server.tables.hosting import HostedTable
from stratagem._parameter_server.tables.initial_rows import InitialRows
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.recording import (
    AllocationRecorder,
    current_recorder,
)
from stratagem._parameter_server.tables.shard import LazyRows, TableShard
from stratagem._parameter_server.tables.variable import (
    Loading,
    TableAccess,
    TableVariable,
)
from stratagem._parameter_server.variables.partitioning import shard_name
from stratagem._parameter_server.variables.placement import Demand
from stratagem._parameter_server.variables.shards import Layout
from stratagem._parameter_server.variables.split_variable import SplitVariable
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable, Shard
from stratagem_proto.v1.variable_pb2 import TableSpec

META_ABOVE = 256 << 20
"""Bytes of memory that a parameter takes at most, unless the user says otherwise."""

_LEAST_SHARD_BYTES = 256 << 10
"""Smaller parts of a table are not worth a request to another server."""


class TablesExtended(PartitionedExtended):
    """A `PartitionedExtended` with tables: parameters that are read by rows.

    Tables are the parameters that are too large for this process, and the weights of
    embeddings with sparse gradients.
    """

    _store: RemoteStore
    _loaded: Loading

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tables: list[TableVariable] = []
        self._readable_nbytes: float = META_ABOVE

    def _scope_resources(self, name: str | None) -> AbstractContextManager[object]:
        return self._table_scope(name)

    @contextmanager
    def _table_scope(
        self, name: str | None, meta_above: float = META_ABOVE
    ) -> Iterator[None]:
        """Open the resources of a scope; parameters of more bytes are tables."""
        self._readable_nbytes = meta_above
        with AllocationRecorder(meta_above), super()._scope_resources(name):
            yield

    # Making tables.

    def _prepare(self, adoption: Adoption) -> None:
        """Turn a parameter that is to be a table into one."""
        parameter = adoption.parameter
        recorder = current_recorder()
        rows = None if recorder is None else recorder.initial_rows(parameter)
        if rows is not None:
            what = f"parameter {adoption.name!r} of {adoption.module_path}"
            rows.require_possible(what)
            _become(parameter, _of_rows(adoption, rows))
        elif _is_sparse_weight(adoption) and not isinstance(parameter, TableParameter):
            _become(parameter, _of_value(parameter))

    def _placed_parameter(
        self, creation: RemoteCreation, adoption: Adoption
    ) -> RemoteVariable | SplitVariable:
        parameter = adoption.parameter
        if not isinstance(parameter, TableParameter):
            return super()._placed_parameter(creation, adoption)
        limits = _limits(adoption)
        contents = _contents(parameter, limits)
        layout = self._layout_of_table(parameter, limits)
        parts = [
            _placed_shard(creation, adoption, part, self._demand(parameter, part))
            for part in _parts(layout, contents, limits)
        ]
        make = TableVariable if limits is None else DynamicTable
        traits = _traits(adoption)
        reach = TableAccess(self._readable_nbytes, self._loaded)
        return make(self._store, traits, parts, layout, reach)

    def _layout_of_table(
        self, parameter: TableParameter, limits: KeyLimits | None
    ) -> Layout:
        if limits is not None:
            return KeyLayout((0,) * len(self._store.servers))
        if self._partitioning.divides or isinstance(parameter.initial, torch.Tensor):
            return self._partitioning.layout(parameter.shape, parameter.dtype)
        rows, nbytes = parameter.shape[0], parameter.shape.numel() * parameter.itemsize
        most = min(len(self._store.servers), rows)
        return Layout.div(rows, max(1, min(most, nbytes // _LEAST_SHARD_BYTES)))

    def _demand(self, parameter: TableParameter, part: _Part) -> Demand:
        if part.spec is None:
            grows = isinstance(parameter.initial, InitialRows)
            return Demand(part.value.nbytes, grows=grows)
        # It has as many parts as there are servers, and nobody knows their sizes.
        servers, keys = self._store.servers.used, part.spec.dynamic
        return Demand(keys.max_bytes, servers[keys.part % len(servers)], grows=True)

    def _shown(
        self, variable: RemoteVariable | SplitVariable, adoption: Adoption
    ) -> HostedParameter:
        """Let modules see a variable by the parameter that it was made of."""
        if not isinstance(variable, TableVariable):
            return self._parameters.add(adoption.parameter, variable, adoption.owners)
        assert isinstance(adoption.parameter, TableParameter)
        devices = self._local_devices()
        hosted = HostedTable(variable, adoption.parameter, devices)
        self._tables.append(variable)
        return self._parameters.host(hosted, adoption.owners)

    # Steps.

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return super()._call_for_each_replica(fn, args, kwargs)
        finally:
            for table in self._tables:
                table.forget()

    def _forget_rows(self, step: OptimizerStep) -> None:
        """Have rows pulled anew of the tables that a step has changed."""
        if self._tables:
            stepped = {one.name for group in step.groups for one in group.variables}
            for table in self._tables:
                if table.name in stepped:
                    table.forget()


def _is_sparse_weight(adoption: Adoption) -> bool:
    return any(
        isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and key == "weight"
        and module.sparse
        for module, key in adoption.owners
    )


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
    shard: Shard | None
    value: torch.Tensor
    spec: TableSpec | None


def _parts(
    layout: Layout, contents: torch.Tensor, limits: KeyLimits | None
) -> list[_Part]:
    count = len(layout.sizes)
    specs = [limits.of_part(n, count) if limits else None for n in range(count)]
    if count == 1:
        return [_Part("", None, contents, specs[0])]
    shards = [Shard(rows, tuple(contents.shape)) for rows in layout.shards]
    return [
        _Part(shard_name("", number), shard, shard.rows.of(contents), specs[number])
        for number, shard in enumerate(shards)
    ]


def _placed_shard(
    creation: RemoteCreation, adoption: Adoption, part: _Part, demand: Demand
) -> TableShard:
    initial = cast(TableParameter, adoption.parameter).initial
    make: Callable[..., TableShard] = TableShard
    if isinstance(initial, InitialRows):
        lazy = LazyRows(initial.initializer(), part.spec or TableSpec())
        make = partial(make, lazy=lazy)
    traits = _traits(adoption)
    named = replace(traits, name=traits.name + part.suffix)
    owner = Owner(adoption.module_path, part.shard)
    return creation.made(make, named, part.value, owner, demand)


def _traits(adoption: Adoption) -> VariableTraits:
    return VariableTraits.of(adoption.name, adoption.parameter.requires_grad)
