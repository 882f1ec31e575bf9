"""What an optimizer is lent for a step, and what comes of it.

A dense gradient steps the variable's own tensor. A row-sparse one steps a copy of the rows that it
names, with a copy of the same rows of the state; they are put back when the step has been taken. So
the step costs what the rows cost, of whatever a variable or a table is large; rows without a
gradient stay as they are, state included; and a step that fails has changed none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from stratagem_psserver.limits.variable_memory_limit import VariableMemoryLimit
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.variables.store import Variable, VariableStore


class BoundParameter(NamedTuple):
    """What an optimizer sees of a variable.

    Attributes:
        tensor: The parameter.
        gradient: Its gradient.
        state: Its state by key; empty where the optimizer begins it.
    """

    tensor: torch.Tensor
    gradient: torch.Tensor
    state: dict[str, Any]


class ParameterBinding(Protocol):
    """A variable lent to an optimizer for one step."""

    @property
    def variable(self) -> Variable:
        """The variable."""

    @property
    def is_by_rows(self) -> bool:
        """Whether its gradient is of some rows."""

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        """Take all memory that the step needs; change nothing.

        Args:
            memory_limit: What there is for more state and rows.

        Raises:
            ResourceExhaustedError: There is not enough.
        """

    def close(self, state: Mapping[str, Any]) -> None:
        """Take back what the optimizer has made."""

    def commit(self, store: VariableStore) -> None:
        """Let the store know the state's variables."""


@dataclass
class WholeBinding:
    """A variable with a dense gradient.

    Attributes:
        variable: The variable.
        gradient: Of its shape.
        layout: The state that the optimizer keeps for it.
        names: Names of its slots by the optimizer's keys.
        slots: Those that there are by the optimizer's keys: all or none.
    """

    variable: Variable
    gradient: torch.Tensor
    layout: StateLayout
    names: Mapping[str, str]
    slots: Mapping[str, Variable]
    _made: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def is_by_rows(self) -> bool:
        return False

    @property
    def missing(self) -> int:
        """Bytes of the state that the optimizer has yet to make."""
        return missing_nbytes(self.variable, self.layout, self.slots)

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        memory_limit.take(self.variable.name, self.missing)
        state = {key: self.layout[key].bound(slot.value) for key, slot in self.slots.items()}
        return BoundParameter(self.variable.value, self.gradient, state)

    def close(self, state: Mapping[str, Any]) -> None:
        self._made = as_tensors(state, self.layout)

    def commit(self, store: VariableStore) -> None:
        for key, tensor in self._made.items():
            slot = self.slots.get(key)
            if slot is not None and slot.value is tensor:
                slot.version += 1  # as nearly always
            else:
                store.put_slot(self.names[key], self.variable.name, tensor)


def missing_nbytes(variable: Variable, layout: StateLayout, slots: Mapping[str, Variable]) -> int:
    """Bytes of the state that an optimizer has yet to make for all of a variable."""
    if len(slots) == len(layout):
        return 0
    return sum(
        state.shape(variable.value).numel() * state.dtype.itemsize
        for key, state in layout.items()
        if key not in slots
    )


def as_tensors(state: Mapping[str, Any], layout: StateLayout) -> dict[str, torch.Tensor]:
    """Return what an optimizer made, in the dtypes of the layout."""
    return {key: as_tensor(value, layout[key].dtype) for key, value in state.items()}


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return what an optimizer made, in some dtype."""
    # Of 160 parameters, calls that change nothing cost as much as a small step.
    if isinstance(value, torch.Tensor) and value.dtype == dtype:
        return value
    return torch.as_tensor(value).to(dtype)
