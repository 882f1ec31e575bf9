"""Variables that replicas write together: of one copy, of equal ones, and of one for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.assignment import Coordinates, Write
from stratagem._core.contexts import (
    current_context,
    current_replica_id,
    entered,
    in_cross_replica_context,
    require_strategy,
    updated_component,
    updating,
)
from stratagem._core.distributed_values import (
    DistributedValues,
    Mirrored,
    PerReplica,
    regroup,
    select_component,
)
from stratagem._core.options import ReduceOp, VariableAggregation
from stratagem._core.replica_context import get_replica_context
from stratagem._core.tensors import IndexedSlices, TensorStandIn
from stratagem._core.update_functions import are_alike, has_differing_copies
from stratagem._core.variable_creation import VariableTraits, operand
from stratagem._core.variables import Variable
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError

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
        if isinstance(value, PerReplica):
            value = PerReplica([self._as_operand(one) for one in value.values])
        elif strategy.extended._num_local_replicas == 1:
            # What the only replica of a worker writes is not wrapped.
            value = self._as_operand(value)
        total = strategy.extended.reduce_to(op, value, self)
        if self.dtype is not torch.bool:
            return total
        # The sums say how many flags are set; the variable, whether any is.
        parts = [one.bool() for one in strategy.experimental_local_results(total)]
        return Mirrored(parts) if isinstance(total, DistributedValues) else parts[0]

    def _as_operand(self, value: Any) -> Any:
        return value if isinstance(value, IndexedSlices) else operand(self, value)


class AggregatingVariable(ReplicaWritten):
    """Wraps the only copy of a variable for strategies with several replicas.

    What replicas write is combined as `aggregation` says and written once. Each replica has a leaf
    of its own, so that gradients do not mix; the leaves share the memory of the one copy, and
    replicas elsewhere compute with copies of them.

    Args:
        strategy: The strategy that it belongs to.
        variable: The only copy.

    Spec: VAR-4, VRD-7.
    """

    def __init__(self, strategy: AnyStrategy, variable: Variable) -> None:
        self._traits = variable._traits
        self._variable = variable
        self._leaves: dict[int, torch.Tensor] = {}
        self._join(strategy)
        variable._join(strategy, container=self)

    def _copied(
        self, strategy: AnyStrategy | None, traits: VariableTraits, memo: dict[int, Any]
    ) -> AggregatingVariable:
        assert strategy is not None
        variable = self._variable._copied(strategy, traits, memo)
        return AggregatingVariable(strategy, variable)

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

    def _operand(self) -> torch.Tensor:
        """Return the value where the replica of this thread computes.

        Gradients flow back to what `value` returns, on the device of the variable.
        """
        here = device_names.current()
        if not here or current_replica_id() is None:
            return self.value()
        return self.value().to(device_names.torch_device(here))

    def _is_seen_as(self, tensor: torch.Tensor) -> bool:
        others = self._leaves.values()
        return self._variable._is_seen_as(tensor) or any(o is tensor for o in others)

    def _leaves_of_replicas(self) -> Sequence[torch.Tensor]:
        return [self._variable.value(), *self._leaves.values()]

    def _target(self, function: str) -> Any:
        if in_cross_replica_context():
            return self._variable._target(function)
        return super()._target(function)

    def _replace_elements(self, places: Coordinates, values: torch.Tensor) -> None:
        context = current_context()
        if context is None or context.replica_context is None:
            super()._replace_elements(places, values)
            return
        self._require_aggregation(Write.SCATTER_UPDATE)
        self._require_combinable(Write.SCATTER_UPDATE)

        def merge(strategy: AnyStrategy, coordinates: Any, values: Any) -> None:
            first = strategy.experimental_local_results((coordinates, values))[0]
            self._replace_elements(Coordinates(tuple(first[0]), places.batch), first[1])

        context.replica_context.merge_call(merge, args=(places.coordinates, values))

    def _write_everywhere(self, write: Write, value: Any) -> None:
        self._variable._write(write, value)


class CopiedVariable(ReplicaWritten):
    """A variable with a copy on the device of each replica.

    Args:
        strategy: The strategy that it belongs to.
        copies: The copies, in replica order.

    Spec: VAR-3, VRD-9 to VRD-13.
    """

    def __init__(self, strategy: AnyStrategy, copies: Sequence[Variable]) -> None:
        self._traits = copies[0]._traits
        self._join(strategy)
        self._copies = tuple(copies)
        for copy in self._copies:
            copy._join(strategy, container=self)

    def _copied(
        self, strategy: AnyStrategy | None, traits: VariableTraits, memo: dict[int, Any]
    ) -> CopiedVariable:
        assert strategy is not None
        names = [copy_name(traits.name, number) for number in range(len(self._copies))]
        copies = [
            copy._copied(strategy, replace(traits, name=name), memo)
            for copy, name in zip(self._copies, names, strict=True)
        ]
        return type(self)(strategy, copies)

    @property
    def values(self) -> tuple[Variable, ...]:
        return self._copies

    @property
    def dtype(self) -> torch.dtype:
        return self._copies[0].dtype

    @property
    def shape(self) -> torch.Size:
        return self._copies[0].shape

    @property
    def device(self) -> torch.device:
        return self._copy().device

    @property
    def device_name(self) -> str:
        return self._copy().device_name

    def read_value(self) -> torch.Tensor:
        """Return a snapshot of the value, differentiable with respect to it.

        Raises:
            ContextError: Another strategy is in charge. Spec: CTX-A18.
        """
        if current_context() is not None and self._strategy is not None:
            require_strategy(self._strategy)
        return super().read_value()

    def _component(self) -> int | None:
        """Return the number of the copy that a replica or an update works on."""
        context = current_context()
        mine = context is not None and context.strategy is self._strategy
        return context.component if context is not None and mine else None

    def _copy(self) -> Variable:
        """Return the copy that the context of this thread selects."""
        index = self._component()
        if index is not None:
            return self._copies[index]
        here = device_names.current()
        return next((c for c in self._copies if c.device_name == here), self._copies[0])

    def _is_seen_as(self, tensor: torch.Tensor) -> bool:
        return any(copy._is_seen_as(tensor) for copy in self._copies)

    def _leaves_of_replicas(self) -> Sequence[torch.Tensor]:
        return [copy.value() for copy in self._copies]

    def _require_one_copy(self, method: str) -> None:
        raise UnimplementedError(
            f"Variable {self.name!r} has {len(self._copies)} copies, for which {method} is not "
            "defined; use scatter_* for rows, or assign"
        )

    def _target(self, function: str) -> Any:
        if updated_component() is not None:
            return self._copy()._target(function)
        return super()._target(function)

    def _write_everywhere(self, write: Write, value: Any) -> None:
        index = updated_component()
        if isinstance(index, int):
            self._copies[index]._write(write, select_component(index, value))
        else:
            self._write_copies(write, value)

    def _write_copies(self, write: Write, value: Any) -> None:
        """Carry out `write` on every copy, with the same value."""
        assert self._strategy is not None
        # Read before any context of a copy is entered, where it might be another for each.
        for index, (copy, one) in enumerate(zip(self._copies, self._equals(value), strict=True)):
            with updating(self._strategy, index):
                copy._write(write, one)

    def _equals(self, value: Any) -> Sequence[Any]:
        """Return what to write into each copy, which is the same value.

        Raises:
            InvalidArgumentError: The value differs between replicas.
            ContextError: It is a variable of another strategy, which has to combine its copies.
        """
        self._require_same_everywhere(value)
        mirrored = isinstance(value, Mirrored | MirroredVariable)
        parts = value.values if mirrored else (value,)
        first, *others = map(self._converted, parts)
        if not all(are_alike(first, other) for other in others):
            raise InvalidArgumentError(
                f"Variable {self.name!r} cannot take {value!r}, whose components are to be equal "
                "and differ; combine them by strategy.reduce() first"
            )
        each = [first, *others]
        return each if len(each) == len(self._copies) else [first] * len(self._copies)

    def _converted(self, value: Any) -> Any:
        return value if isinstance(value, IndexedSlices) else operand(self, value)

    def _require_same_everywhere(self, value: Any) -> None:
        if isinstance(value, PerReplica):
            raise InvalidArgumentError(
                f"Variable {self.name!r} cannot take a PerReplica in cross-replica "
                "context, because its copies would differ; combine the values by "
                "strategy.reduce() or extended.reduce_to() first"
            )

    def __repr__(self) -> str:
        copies = DistributedValues(self._copies)
        return repr(copies).replace("DistributedValues", type(self).__name__, 1)


class MirroredVariable(CopiedVariable):
    """A variable whose copies are written together, so that they are equal.

    Spec: VAR-3, VRD-1, VRD-2, VWR-1 to VWR-15, VSC-1 to VSC-6.
    """

    def value(self) -> torch.Tensor:
        return self._copy().value()

    def _saved_value(self) -> torch.Tensor:
        return self._copies[0]._saved_value()

    def _before_write_of_copy(self, copy: Variable, function: str) -> None:
        context = current_context()
        if self._component() is None or context is None or context.replica_context is not None:
            raise InvalidArgumentError(
                f"{copy.name!r} is one of the equal copies of variable {self.name!r}, which would "
                f"part; call {function} of the variable, which writes all of them"
            )
        if context.written is not None:
            context.written[self] = None

    def _note_write(self) -> None:
        if updated_component() is None:
            assert self._strategy is not None
            self._strategy.extended._note_write(self)

    @torch.no_grad()
    def _unite_copies(self) -> bool:
        first, *others = (copy.value() for copy in self._copies)
        within_rounding = True
        for other in others:
            if not are_alike(other, first):
                there = first.to(other.device)
                within_rounding &= torch.allclose(other, there, equal_nan=True)
                other.copy_(there)
        return within_rounding

    def _result(self) -> Any:
        index = self._component()
        if index is not None:
            return self._copies[index]._saved_value()
        return regroup([copy._saved_value() for copy in self._copies], Mirrored)

    def _write_copies(self, write: Write, value: Any) -> None:
        self._require_combinable(write)
        super()._write_copies(write, value)


def copy_name(name: str, number: int) -> str:
    """Return the name of a copy of a variable. Spec: VAR-3.

    Args:
        name: Name of the variable.
        number: Which copy; the first has the name of the variable itself.
    """
    return f"{name}/replica_{number}" if number else name


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
