"""The part of a strategy that divides what is created in its scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stratagem._cluster.membership import Membership
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.initial_values import require_dense
from stratagem._core.variables.traits import VariableTraits
from stratagem._hosting.modules.adoption import Adoption
from stratagem._parameter_server.coordinated import CoordinatedExtended
from stratagem._parameter_server.hosting.creation import RemoteCreation
from stratagem._parameter_server.settings import Settings
from stratagem._parameter_server.variables.partitioning import (
    Partitioning,
    shard_name,
)
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.shards import Layout
from stratagem._parameter_server.variables.split_variable import SplitVariable
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable, Shard

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class PartitionedExtended(CoordinatedExtended):
    """A `CoordinatedExtended` whose variables may be divided into shards.

    The `_create_variable` of a subclass takes `shard` as well, a `Shard`.

    Args:
        container_strategy: The strategy.
        membership: Which task of the cluster this process is.
        devices: Full names of the devices of this worker's replicas.
        settings: What its user chose.
    """

    def __init__(
        self,
        container_strategy: Strategy,
        membership: Membership,
        devices: Sequence[str],
        settings: Settings,
    ) -> None:
        super().__init__(container_strategy, membership, devices, settings.synchronous)
        self._partitioning = Partitioning(settings.variable_partitioner)
        self._sharded: list[ShardedVariable] = []

    def _create_in_scope(self, next_creator: NextCreator, **kwargs: Any) -> Any:
        whole = "colocate_with" in kwargs or kwargs.get("per_worker_variable")
        if whole or not self._partitioning.divides:
            return super()._create_in_scope(next_creator, **kwargs)
        values = self._partitioning.initial_values(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        if len(values) == 1:
            kwargs["initial_value"] = values[0]
            return super()._create_in_scope(next_creator, **kwargs)
        return self._create_shards(next_creator, values, kwargs)

    def _create_shards(
        self,
        next_creator: NextCreator,
        values: Sequence[torch.Tensor],
        kwargs: dict[str, Any],
    ) -> ShardedVariable:
        name = self._names.choose(kwargs.get("name") or "Variable")
        rows = Layout(tuple(len(value) for value in values)).shards
        whole = sum(map(len, values)), *values[0].shape[1:]
        shards = []
        for number, value in enumerate(values):
            shard = Shard(rows[number], whole)
            given = {"name": shard_name(name, number), "initial_value": value}
            own = kwargs | given | {"shape": None, "shard": shard}
            shards.append(super()._create_in_scope(next_creator, **own))
        sharded = ShardedVariable.divided(name, shards)
        self._names.record(name, sharded)
        # Kept alive, since its shards keep their names on the servers.
        self._sharded.append(sharded)
        return sharded

    def _placed_parameter(
        self, creation: RemoteCreation, adoption: Adoption
    ) -> RemoteVariable | SplitVariable:
        """Return the variable of a parameter, which does not exist yet."""
        parameter, path = adoption.parameter, adoption.module_path
        require_dense(parameter, f"parameter {adoption.name!r} of {path}")
        traits = VariableTraits.of(adoption.name, parameter.requires_grad)
        layout = self._partitioning.layout(parameter.shape, parameter.dtype)
        if len(layout.sizes) == 1:
            return creation.placed(traits, parameter, Owner(path))
        parts = [
            creation.placed(
                replace(traits, name=shard_name(adoption.name, number)),
                rows.of(parameter.detach()),
                Owner(path, Shard(rows, tuple(parameter.shape))),
            )
            for number, rows in enumerate(layout.shards)
        ]
        return SplitVariable(traits, parts, layout)
