"""Variables with a copy for each replica, brought together when they are read."""

from __future__ import annotations

from typing import Any

import torch

from stratagem._core.contexts.context import current_context, require_strategy
from stratagem._core.distributed_variables.mirrored import CopiedVariable
from stratagem._core.enums import ReduceOp, VariableAggregation
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.tensors.operators import TensorStandIn
from stratagem._core.values.distributed_values import PerReplica
from stratagem._core.values.regroup import select_component
from stratagem._core.variables.assignable import Write
from stratagem._core.variables.initial_values import operand
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError


class SyncOnReadVariable(CopiedVariable):
    """A variable that each replica writes for itself, such as a metric.

    In a replica, reads and writes concern its own copy. Elsewhere a read combines the copies as
    `aggregation` says, and an assignment is spread over them so that reading returns what was
    assigned.

    Spec: VRD-3 to VRD-6, VOR-1 to VOR-11.
    """

    def _component(self) -> int | None:
        context = current_context()
        # An update of the only copy of another variable is of all replicas.
        of_all = context is not None and context.replica_context is None and context.written is None
        return None if of_all else super()._component()

    def value(self) -> torch.Tensor:
        index = self._component()
        return self._combined_copies() if index is None else self._copies[index].value()

    def _saved_value(self) -> torch.Tensor:
        return self._combined_copies().detach().clone()

    def _target(self, function: str) -> Any:
        # A replica's own copy may differ from the others.
        index = self._component()
        if index is None:
            return super()._target(function)
        return self._copies[index]._target(function)

    def _result(self) -> Any:
        index = self._component()
        return self._saved_value() if index is None else self._copies[index]._saved_value()

    def _combined_copies(self) -> torch.Tensor:
        """Return what the copies amount to.

        Raises:
            InvalidArgumentError: There is no aggregation. Spec: VRD-4.
            ContextError: Another strategy is in charge.
        """
        assert self._strategy is not None
        if current_context() is not None:
            require_strategy(self._strategy)
        extended = self._strategy.extended
        values = [copy.value() for copy in self._copies]
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            first: torch.Tensor = extended._of_first_replica(values[0])
            return first
        op = ReduceOp.from_variable_aggregation(self.aggregation)
        # Of flags the sum says how many are set.
        return extended._combine_copies(op, values).to(values[0].dtype)

    def _write_from_replica(self, write: Write, value: Any) -> None:
        self._require_dense(write, value)
        self._require_same_everywhere(value)
        self._copies[self._component() or 0]._write(write, value)

    def _write_everywhere(self, write: Write, value: Any) -> None:
        self._require_dense(write, value)
        index = self._component()
        if index is None:
            self._write_copies(write, value)
        else:
            self._copies[index]._write(write, select_component(index, value))

    def _write_copies(self, write: Write, value: Any) -> None:
        if write is not Write.ASSIGN:
            self._require_spreadable(write)
        spread = write is Write.ASSIGN and self.aggregation is VariableAggregation.SUM
        assert self._strategy is not None
        first = self._strategy.extended._first_replica_id
        for index, (copy, one) in enumerate(zip(self._copies, self._equals(value), strict=True)):
            copy._write(write, self._share(one, first + index) if spread else one)

    def _converted(self, value: Any) -> torch.Tensor:
        if isinstance(value, TensorStandIn):
            value = value._operand()
        return operand(self, torch.as_tensor(value).to(self.dtype))

    def _share(self, total: torch.Tensor, index: int) -> torch.Tensor:
        """Return the part of `total` for a replica; the shares add up to it."""
        assert self._strategy is not None
        count = self._strategy.num_replicas_in_sync
        if total.is_floating_point() or total.is_complex():
            return total / count
        if total.dtype is torch.bool:
            return total if index == 0 else torch.zeros_like(total)
        share = torch.div(total, count, rounding_mode="floor")
        return share if index else total - share * (count - 1)

    def _require_spreadable(self, write: Write) -> None:
        if self.aggregation is VariableAggregation.SUM:
            raise InvalidArgumentError(
                f"SyncOnReadVariable does not support {write.value} in cross-replica "
                f"context with aggregation=SUM: {self.name!r} would change by the "
                "delta once for each replica; use assign"
            )
        # Reading would fail, so nothing is changed.
        if self.aggregation is VariableAggregation.NONE:
            ReduceOp.from_variable_aggregation(self.aggregation)

    def _require_dense(self, write: Write, value: Any) -> None:
        if isinstance(value, IndexedSlices):
            raise UnimplementedError(
                f"Variable {self.name!r} is synchronized ON_READ, for which "
                f"{write.value} is not defined; use assign, assign_add or assign_sub"
            )

    def _require_same_everywhere(self, value: Any) -> None:
        if isinstance(value, PerReplica):
            raise InvalidArgumentError(
                f"Variable {self.name!r} cannot take a PerReplica; pass it to the "
                "replica function by run(), which gives each replica its own value"
            )
