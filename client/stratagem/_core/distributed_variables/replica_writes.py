"""Writes that replicas make together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.contexts.context import (
    current_context,
    current_replica_id,
    require_strategy,
)
from stratagem._core.contexts.scope import entered
from stratagem._core.distributed_variables.updating import has_differing_copies
from stratagem._core.enums import ReduceOp, VariableAggregation
from stratagem._core.replicas.replica_context import get_replica_context
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.values.distributed_values import DistributedValues, Mirrored, PerReplica
from stratagem._core.variables.assignable import Write
from stratagem._core.variables.initial_values import operand
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy

_NOT_COMBINABLE = (Write.SCATTER_MIN, Write.SCATTER_MAX, Write.SCATTER_UPDATE)


class ReplicaWritten(Variable):
    """A variable of several replicas, whose writes are combined and made once.

    In a replica context that is a merge call, and `aggregation` says how to combine; in
    cross-replica context what is written is taken as it is. A subclass provides
    `_write_everywhere` and `_leaves_of_replicas`.

    Spec: VWR-1 to VWR-15, VSC-1 to VSC-5.
    """

    def _write_everywhere(self, write: Write, value: Any) -> None:
        """Carry out `write` in cross-replica or update context."""
        raise self._missing("_write_everywhere")

    def _leaves_of_replicas(self) -> Sequence[torch.Tensor]:
        """Return what replicas see as `value()`; the first one's first."""
        raise self._missing("_leaves_of_replicas")

    @property
    def grad(self) -> torch.Tensor | None:
        """The gradient that `backward` accumulated for this replica; outside, for the first one.

        To set it to None outside of replicas clears those of all.

        Raises:
            FailedPreconditionError: It is set to something else there, and there are several
                replicas, each with a gradient of its own.
        """
        return self.value().grad

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        if current_replica_id() is not None:
            self.value().grad = gradient
            return
        assert self._strategy is not None
        replicas = self._strategy.extended._num_local_replicas
        if gradient is not None and replicas > 1:
            raise FailedPreconditionError(
                f"the gradient of Variable {self.name!r} is set outside of run(), and each of "
                f"{replicas} replicas has its own; set it in the function that strategy.run() "
                "is given",
                variable=self.name,
            )
        for leaf in self._leaves_of_replicas():
            leaf.grad = gradient

    def _write(self, write: Write, value: Any) -> None:
        assert self._strategy is not None
        with entered(self._strategy):
            if has_differing_copies(value):
                require_strategy(value.distribute_strategy)
            context = current_context()
            if context is not None and context.replica_context is not None:
                self._write_from_replica(write, value)
            else:
                self._write_everywhere(write, value)
                self._note_write()

    def _write_from_replica(self, write: Write, value: Any) -> None:
        assert self._strategy is not None
        if self._strategy.num_replicas_in_sync == 1:
            self._write_everywhere(write, value)
            return
        self._require_aggregation(write)
        self._require_combinable(write)
        # The merge call would take a list apart and merge its elements.
        if isinstance(value, list | tuple):
            value = operand(self, value)

        def merge(strategy: AnyStrategy, merged: Any) -> None:
            self._write_everywhere(write, self._combined(strategy, merged))

        replica_context = get_replica_context()
        assert replica_context is not None
        replica_context.merge_call(merge, args=(value,))

    def _require_aggregation(self, write: Write) -> None:
        if self.aggregation is VariableAggregation.NONE:
            raise InvalidArgumentError(
                f"Variable {self.name!r}: you must specify an aggregation method to "
                f"call {write.value} in a replica context; create the variable with "
                "for instance aggregation=VariableAggregation.MEAN"
            )

    def _require_combinable(self, write: Write) -> None:
        combined = (VariableAggregation.SUM, VariableAggregation.MEAN)
        if write in _NOT_COMBINABLE and self.aggregation in combined:
            raise UnimplementedError(
                f"Variable {self.name!r}: {write.value} of several replicas is not "
                f"defined for {self.aggregation}; use ONLY_FIRST_REPLICA, or combine "
                "the rows yourself and assign the whole"
            )

    def _combined(self, strategy: AnyStrategy, value: Any) -> Any:
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            first = strategy.experimental_local_results(value)[0]
            return strategy.extended._of_first_replica(self._as_operand(first))
        op = ReduceOp.from_variable_aggregation(self.aggregation)
        total = strategy.extended.reduce_to(op, self._as_operands(value), self)
        return self._as_flags(strategy, total) if self.dtype is torch.bool else total

    def _as_flags(self, strategy: AnyStrategy, total: Any) -> Any:
        """Return whether any flag is set, of sums that say how many are."""
        parts = [one.bool() for one in strategy.experimental_local_results(total)]
        return Mirrored(parts) if isinstance(total, DistributedValues) else parts[0]

    def _as_operands(self, value: Any) -> Any:
        if isinstance(value, PerReplica):
            return PerReplica([self._as_operand(one) for one in value.values])
        assert self._strategy is not None
        # What the only replica of a worker writes is not wrapped.
        alone = self._strategy.extended._num_local_replicas == 1
        return self._as_operand(value) if alone else value

    def _as_operand(self, value: Any) -> Any:
        return value if isinstance(value, IndexedSlices) else operand(self, value)
