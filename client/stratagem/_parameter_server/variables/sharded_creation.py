"""Creating variables that a partitioner divides into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem._core.names import UniqueNames
from stratagem._parameter_server.variables.partitioning import Partitioning, shard_name
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.shards import Layout
from stratagem._parameter_server.variables.variable import Shard


class ShardedCreation:
    """Creates variables, each whole or as several shards.

    Args:
        partitioning: Says into how many.
        names: The names of the strategy's variables.
    """

    def __init__(self, partitioning: Partitioning, names: UniqueNames) -> None:
        self._partitioning = partitioning
        self._names = names
        # Kept alive, since their shards keep their names on the servers.
        self._sharded: list[ShardedVariable] = []

    def create(self, create_one: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Create a variable, or a `ShardedVariable` of several.

        Args:
            create_one: Creates a variable; takes `shard` as well, a `Shard`.
            kwargs: The arguments of `Variable`, in `colocate_vars_with` also `colocate_with`.
        """
        whole = "colocate_with" in kwargs or kwargs.get("per_worker_variable")
        if whole or not self._partitioning.divides:
            return create_one(**kwargs)
        values = self._partitioning.initial_values(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        if len(values) == 1:
            return create_one(**{**kwargs, "initial_value": values[0]})
        return self._create_shards(create_one, values, kwargs)

    def _create_shards(
        self, create_one: Callable[..., Any], values: Sequence[torch.Tensor], kwargs: dict[str, Any]
    ) -> ShardedVariable:
        name = self._names.choose(kwargs.get("name") or "Variable")
        rows = Layout(tuple(len(value) for value in values)).shards
        whole = sum(map(len, values)), *values[0].shape[1:]
        shards = []
        for number, value in enumerate(values):
            given = {"name": shard_name(name, number), "initial_value": value}
            own = {"shape": None, "shard": Shard(rows[number], whole)}
            shards.append(create_one(**{**kwargs, **given, **own}))
        sharded = ShardedVariable.divided(name, shards)
        self._names.record(name, sharded)
        self._sharded.append(sharded)
        return sharded
