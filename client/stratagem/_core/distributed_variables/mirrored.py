"""Variables with a copy for each replica, kept equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts.context import (
    current_context,
    require_strategy,
    updated_component,
    updating,
)
from stratagem._core.distributed_variables.replica_writes import ReplicaWritten
from stratagem._core.distributed_variables.updating import are_alike
from stratagem._core.enums import VariableAggregation, VariableSynchronization
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.values.distributed_values import DistributedValues, Mirrored, PerReplica
from stratagem._core.values.regroup import regroup, select_component
from stratagem._core.variables.assignable import Write
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.initial_values import operand
from stratagem._core.variables.traits import VariableTraits
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


def created_copies(
    first: Variable, next_creator: NextCreator, devices: Sequence[str], kwargs: dict[str, Any]
) -> list[Variable]:
    """Return a variable and copies of it, of the same value. Spec: VAR-3.

    Args:
        first: The variable.
        next_creator: Creates the copies.
        devices: Where to.
        kwargs: What `first` was created from.
    """
    value = {"initial_value": first.value().detach(), "dtype": None, "shape": None}
    return [first] + [
        next_creator(**{**kwargs, **value, "name": copy_name(first.name, number)}, device=device)
        for number, device in enumerate(devices, start=1)
    ]


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


def require_supported(name: str, synchronization: VariableSynchronization) -> None:
    """Check that copies can be kept in this way.

    Raises:
        InvalidArgumentError: They cannot. Spec: VAR-20.
    """
    if synchronization is VariableSynchronization.NONE:
        raise InvalidArgumentError(
            "`NONE` variable synchronization mode is not supported with copies on "
            f"several devices; leave synchronization out for variable {name!r}"
        )


def require_mean_exists(variable: Variable) -> None:
    """Check that the mean of assignments has the variable's dtype.

    Raises:
        InvalidArgumentError: It has not. Spec: VAR-23.
    """
    fractional = variable.dtype.is_floating_point or variable.dtype.is_complex
    if variable.aggregation is VariableAggregation.MEAN and not fractional:
        raise InvalidArgumentError(
            f"Variable {variable.name!r} cannot have aggregation=MEAN and a "
            f"non-floating dtype, {variable.dtype}; use SUM, or a floating dtype"
        )
