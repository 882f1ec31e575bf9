"""Variables of the parameters that modules have in this process as well."""

from __future__ import annotations

from dataclasses import replace

from stratagem._core.variables.initial_values import require_dense
from stratagem._core.variables.traits import VariableTraits
from stratagem._hosting.modules.adoption import Adoption
from stratagem._parameter_server.hosting.creation import RemoteCreation
from stratagem._parameter_server.variables.partitioning import Partitioning, shard_name
from stratagem._parameter_server.variables.split_variable import SplitVariable
from stratagem._parameter_server.variables.variable import Owner, RemoteVariable, Shard


def placed_parameter(
    creation: RemoteCreation, partitioning: Partitioning, adoption: Adoption
) -> RemoteVariable | SplitVariable:
    """Return the variable of a parameter, which does not exist yet."""
    parameter, path = adoption.parameter, adoption.module_path
    require_dense(parameter, f"parameter {adoption.name!r} of {path}")
    traits = VariableTraits.of(adoption.name, parameter.requires_grad)
    layout = partitioning.layout(parameter.shape, parameter.dtype)
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
