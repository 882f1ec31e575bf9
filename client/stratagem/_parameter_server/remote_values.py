"""Reading and writing several variables on servers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stratagem._core.contexts.context import current_replica_id
from stratagem._core.variables.assignable import Write
from stratagem._core.variables.variable import Variable
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.tables.extended import TablesExtended
from stratagem._parameter_server.variables.split_variable import parts_of
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem_proto.errors import InvalidArgumentError


class RemoteValues(TablesExtended):
    """One request for each server, all in flight at once.

    Attributes:
        _store: The variables on the servers.
    """

    _store: RemoteStore

    def _values_of(self, variables: Sequence[Variable]) -> list[torch.Tensor]:
        if current_replica_id() is None:
            remotes = [self._own(variable) for variable in variables]
            self._store.refresh(remotes)
            return [remote.leaf for remote in remotes]
        return super()._values_of(variables)

    def _rows_of(
        self, variables: Sequence[Variable], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        remotes = [self._own(variable) for variable in variables]
        differentiable = torch.is_grad_enabled() and remotes[0].leaf.requires_grad
        if differentiable or current_replica_id() is not None:
            return super()._rows_of(variables, rows)
        return self._store.rows(remotes, rows)

    def _write_each(self, write: Write, values: Mapping[Variable, Any]) -> None:
        if current_replica_id() is not None:
            super()._write_each(write, values)
            return
        remotes = {self._own(variable): value for variable, value in values.items()}
        self._store.write_behind(
            {remote: remote.writing(write, value) for remote, value in remotes.items()}
        )

    def _own(self, variable: Any) -> RemoteVariable:
        parts = self._own_parts(variable)
        if len(parts) > 1:
            raise InvalidArgumentError(
                f"{variable.name!r} is on the servers in {len(parts)} parts, which "
                "update functions do not change as one; leave it whole by the "
                "strategy's variable_partitioner"
            )
        return parts[0]

    def _own_parts(self, variable: Any) -> Sequence[RemoteVariable]:
        parts = parts_of(variable)
        own = self._container_strategy()
        if not parts or parts[0].distribute_strategy is not own:
            raise InvalidArgumentError(
                f"this must be a Variable of this strategy, not {variable!r}; pass one "
                "that was created in its scope, of a ShardedVariable one of its "
                "variables"
            )
        return parts
