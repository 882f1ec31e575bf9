"""One variable that several replicas share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stratagem._contexts.context import (
    current_context,
    get_replica_context,
    in_cross_replica_context,
)
from stratagem._contexts.scope import entered
from stratagem._enums import ReduceOp, VariableAggregation
from stratagem._replicas.values import PerReplica
from stratagem._variables.indexed_slices import IndexedSlices
from stratagem._variables.initial_values import operand
from stratagem._variables.variable import Variable, Write
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

_NOT_COMBINABLE = (Write.SCATTER_MIN, Write.SCATTER_MAX, Write.SCATTER_UPDATE)


class AggregatingVariable(Variable):
    """Wraps the only copy of a variable for strategies with several replicas.

    What replicas write is combined as `aggregation` says and written once. Each
    replica has a leaf of its own, so that gradients do not mix; the leaves share
    the memory of the one copy.

    Args:
        strategy: The strategy that it belongs to.
        variable: The only copy.

    Spec: VAR-4, VWR-1 to VWR-15, VSC-1 to VSC-5.
    """

    def __init__(self, strategy: Strategy, variable: Variable) -> None:
        self._traits = variable._traits
        self._variable = variable
        self._leaves: dict[int, torch.Tensor] = {}
        self._join(strategy)
        variable._join(strategy, container=self)

    @property
    def only_copy(self) -> Variable:
        """The variable that it wraps."""
        return self._variable

    @property
    def dtype(self) -> torch.dtype:
        return self._variable.dtype

    @property
    def shape(self) -> torch.Size:
        return self._variable.shape

    @property
    def device_name(self) -> str:
        return self._variable.device_name

    def value(self) -> torch.Tensor:
        context = current_context()
        if context is None or context.strategy is not self._strategy:
            return self._variable.value()
        return self._leaf(context.component or 0)

    def _leaf(self, replica: int) -> torch.Tensor:
        shared = self._variable.value()
        if replica == 0:
            return shared
        leaf = self._leaves.get(replica)
        if leaf is None or leaf.data_ptr() != shared.data_ptr():
            leaf = shared.detach().requires_grad_(shared.requires_grad)
            self._leaves[replica] = leaf
        return leaf

    def _is_seen_as(self, tensor: torch.Tensor) -> bool:
        others = self._leaves.values()
        return self._variable._is_seen_as(tensor) or any(o is tensor for o in others)

    def _target(self, function: str) -> Any:
        if in_cross_replica_context():
            return self._variable._target(function)
        return super()._target(function)

    def _write(self, write: Write, value: Any) -> None:
        assert self._strategy is not None
        with entered(self._strategy):
            if in_cross_replica_context():
                self._variable._write(write, value)
            else:
                self._write_from_replica(write, value)

    def _write_from_replica(self, write: Write, value: Any) -> None:
        self._require_combinable(write)
        # The merge call would take a list apart and merge its elements.
        if isinstance(value, list | tuple):
            value = operand(self, value)

        def merge(strategy: Strategy, merged: Any) -> None:
            self._variable._write(write, self._combined(strategy, merged))

        replica_context = get_replica_context()
        assert replica_context is not None
        replica_context.merge_call(merge, args=(value,))

    def _require_combinable(self, write: Write) -> None:
        aggregation = self.aggregation
        if aggregation is VariableAggregation.NONE:
            raise InvalidArgumentError(
                f"Variable {self.name!r}: you must specify an aggregation method to "
                f"call {write.value} in a replica context; create the variable with "
                "for instance aggregation=VariableAggregation.MEAN"
            )
        first_only = aggregation is VariableAggregation.ONLY_FIRST_REPLICA
        if write in _NOT_COMBINABLE and not first_only:
            raise UnimplementedError(
                f"Variable {self.name!r}: {write.value} in a replica context is not "
                f"defined for {aggregation}; use ONLY_FIRST_REPLICA, or reduce the "
                "rows and write them in a merge call"
            )

    def _combined(self, strategy: Strategy, value: Any) -> Any:
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return strategy.experimental_local_results(value)[0]
        op = ReduceOp.from_variable_aggregation(self.aggregation)
        return strategy.extended.reduce_to(op, self._as_operands(value), self)

    def _as_operands(self, value: Any) -> Any:
        if not isinstance(value, PerReplica):
            return value
        return PerReplica(
            [
                v if isinstance(v, IndexedSlices) else operand(self, v)
                for v in value.values
            ]
        )
