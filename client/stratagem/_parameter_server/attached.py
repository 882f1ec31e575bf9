"""The strategy of a worker server, whose variables a coordinator has made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import torch
from torch.nn import Parameter

from stratagem._cluster.tasks import Membership
from stratagem._core.options import VariableAggregation, VariableSynchronization
from stratagem._core.scalars import Sink
from stratagem._core.variable_creation import VariableTraits
from stratagem._core.variables import Variable
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosting import Attached, MadeElsewhere, living_hostings
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.loaded_values import OnlyTheChief
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.tables import LazyRows, TablePart, TableShard
from stratagem._parameter_server.tables.variable import (
    DynamicTable,
    KeyLayout,
    TableAccess,
    TableVariable,
)
from stratagem._parameter_server.variables.shards import Layout, Place, server_named
from stratagem._parameter_server.variables.variable import (
    Owner,
    RemoteVariable,
    Shard,
    SplitVariable,
    parts_of,
)
from stratagem_proto.division import PartRows
from stratagem_proto.errors import FailedPreconditionError, InternalError
from stratagem_proto.v1.variable_pb2 import Aggregation, Synchronization, VariableSpec
from stratagem_proto.wire.tensors import decode_dtype


@dataclass(frozen=True)
class ParameterParts:
    """A module's parameter as servers have it.

    Attributes:
        name: Name of its variable.
        shape: Its shape.
        specs: What it is on the servers: one variable, or several with some rows each.
        readable_nbytes: Of a table: how many bytes of it are read as a whole at most; None for a
            parameter with a copy in each process.
    """

    name: str
    shape: tuple[int, ...]
    specs: tuple[VariableSpec, ...]
    readable_nbytes: float | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of its elements."""
        return decode_dtype(self.specs[0].tensor.dtype)

    @property
    def traits(self) -> VariableTraits:
        """How its variable is meant to be used."""
        return VariableTraits.with_defaults(self.name, self.specs[0].trainable)

    @property
    def has_keys(self) -> bool:
        """Whether its rows are arbitrary keys."""
        return self.specs[0].table.HasField("dynamic")

    @property
    def layout(self) -> Layout:
        """Which rows each part has."""
        sizes = tuple(spec.tensor.shape[0] for spec in self.specs)
        if self.has_keys:
            return KeyLayout(sizes)
        return Layout(sizes, self.specs[0].partition.HasField("interleaved"))


class AttachedObjects(Attached):
    """What a coordinator has made, as functions on a worker server use it.

    Variables are found by name and server, whatever the order.

    Args:
        extended: The strategy's `extended` on the worker server.
    """

    _hosting: RemoteHosting

    def __init__(self, extended: ParameterServerExtended) -> None:
        super().__init__(extended._hosting)
        self._extended = extended
        self._variables = extended._variables
        self._store = extended._store
        self._has_new_parameters = False

    def variable(self, spec: VariableSpec) -> Variable:
        """Return a variable that exists on a server."""
        traits = _traits(spec)
        value = torch.empty(
            tuple(spec.tensor.shape),
            dtype=decode_dtype(spec.tensor.dtype),
            device=self._hosting.devices[0],
        )
        differentiable = value.is_floating_point() or value.is_complex()
        value.requires_grad_(traits.trainable and differentiable)
        remote = self._remote(spec, value)
        self._variables.established.append(remote)
        remote._join(self._extended._container_strategy())
        variable = self._extended._shared_by_replicas(remote)
        self._extended._names.record(spec.name, variable)
        living_hostings.add(self._hosting)  # optimizers look for what `value` returns
        return variable

    def parameter(self, parts: ParameterParts) -> Parameter:
        """Return a parameter whose variable exists on servers, without its value.

        `refresh_new` reads that.
        """
        parameter = self._empty(parts)
        variable = self._of_parts(parts, parameter)
        self._variables.established += parts_of(variable)
        path = parts.specs[0].module_path
        self._hosting.show(variable, Adoption(parts.name, parameter, (), path))
        self._extended._names.record(parts.name, parameter)
        self._has_new_parameters = True
        return parameter

    def forget(self, ordinals: Iterable[int]) -> None:
        """Know nothing any more of what the coordinator has forgotten, by places of creation."""
        self._extended.forgetting.drop_ordinals(ordinals)

    def refresh_new(self) -> None:
        """Give parameters their values if some have none yet."""
        if self._has_new_parameters:
            self._store.refresh(self._variables.established)
            self._has_new_parameters = False

    def _empty(self, parts: ParameterParts) -> Parameter:
        if parts.readable_nbytes is not None:
            return TableParameter(parts.shape, parts.dtype)
        device = self._hosting.devices[0]
        value = torch.empty(parts.shape, dtype=parts.dtype, device=device)
        return Parameter(value, value.is_floating_point() or value.is_complex())

    def _of_parts(
        self, parts: ParameterParts, parameter: Parameter
    ) -> RemoteVariable | SplitVariable:
        if parts.readable_nbytes is not None:
            return self._table(parts, parts.readable_nbytes)
        if len(parts.specs) == 1:
            return self._remote(parts.specs[0], parameter)
        shards = zip(parts.specs, parts.layout.shards, strict=True)
        values = parameter.detach()
        remotes = [self._remote(spec, rows.select(values)) for spec, rows in shards]
        return SplitVariable(parts.traits, remotes, parts.layout)

    def _remote(self, spec: VariableSpec, value: torch.Tensor) -> RemoteVariable:
        return RemoteVariable(self._store, _place(spec), _traits(spec), value, _owner(spec))

    def _table(self, parts: ParameterParts, readable_nbytes: float) -> TableVariable:
        loading = OnlyTheChief(self._extended._membership)
        access = TableAccess(readable_nbytes, loading)
        layout = parts.layout
        shards = [
            self._table_shard(spec, TablePart(layout, number, parts.shape[1:]))
            for number, spec in enumerate(parts.specs)
        ]
        make = DynamicTable if parts.has_keys else TableVariable
        return make(self._store, parts.traits, shards, layout, access)

    def _table_shard(self, spec: VariableSpec, part: TablePart) -> TableShard:
        nothing = torch.empty((), dtype=decode_dtype(spec.tensor.dtype))
        return TableShard(
            self._store,
            _place(spec),
            _traits(spec),
            nothing.expand(tuple(spec.tensor.shape)),
            Owner(spec.module_path, part if spec.HasField("partition") else None),
            LazyRows(spec.initializer, spec.table) if spec.HasField("initializer") else None,
        )


class AttachedStrategy(ParameterServerStrategy):
    """A `ParameterServerStrategy` on a worker server.

    Its variables, modules and optimizers come from a coordinator.
    """

    @cached_property
    def attached(self) -> AttachedObjects:
        """What the coordinator has made."""
        extended = self.extended
        assert isinstance(extended, ParameterServerExtended)
        return AttachedObjects(extended)

    def log_to(self, sink: Sink) -> NoReturn:
        raise FailedPreconditionError(
            "log_to was called in a function that a coordinator has scheduled, which may run on "
            "any worker, any number of times; call it in the coordinator's program, and log there "
            "what functions return"
        )

    def _elsewhere(self, member: Membership) -> MadeElsewhere:
        return MadeElsewhere(member.name)


def _place(spec: VariableSpec) -> Place:
    server = server_named(spec.device)
    if server is None:
        raise InternalError(f"variable {spec.name!r} is on no server")
    return Place(server, spec.ordinal)


def _traits(spec: VariableSpec) -> VariableTraits:
    synchronization = Synchronization.Name(spec.synchronization)
    aggregation = Aggregation.Name(spec.aggregation)
    return VariableTraits(
        spec.name,
        spec.trainable,
        VariableSynchronization[synchronization.removeprefix("SYNCHRONIZATION_")],
        VariableAggregation[aggregation.removeprefix("AGGREGATION_")],
    )


def _owner(spec: VariableSpec) -> Owner:
    if not spec.HasField("partition"):
        return Owner(spec.module_path)
    shard = Shard(PartRows.from_spec(spec), tuple(spec.partition.full_shape))
    return Owner(spec.module_path, shard)
