"""The binding of a variable to an optimizer for one step.

With a dense gradient, the optimizer steps the variable's own tensor. With a row-sparse gradient it
steps a copy of the rows that have a gradient, and of the same rows of the state; after the step
they are written back. So the cost of a step depends on the number of its rows and not on the size
of the variable; rows without a gradient keep their values and state; and a step that fails has
changed no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.variables.store import Variable, VariableStore


class BoundParameter(NamedTuple):
    """A parameter as the optimizer gets it.

    Attributes:
        tensor: The parameter.
        gradient: Its gradient.
        state: Its state by key; empty if this is its first step.
    """

    tensor: torch.Tensor
    gradient: torch.Tensor
    state: dict[str, Any]


class ParameterBinding(Protocol):
    """A variable that is bound to an optimizer for one step."""

    @property
    def variable(self) -> Variable:
        """The variable."""

    @property
    def is_by_rows(self) -> bool:
        """Whether its gradient is row-sparse."""

    def open(self, memory_limit: VariableMemoryLimit) -> BoundParameter:
        """Take all memory that the step needs, without changing the variable.

        Args:
            memory_limit: The limit of the memory for new state and rows.

        Raises:
            ResourceExhaustedError: There is not enough memory.
        """

    def close(self, state: Mapping[str, Any]) -> None:
        """Take over the results of the optimizer: rows, and the state that it made."""

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""


@dataclass
class WholeBinding:
    """A variable with a dense gradient.

    Attributes:
        variable: The variable.
        gradient: The gradient, of the variable's shape.
        layout: The state that the optimizer keeps for it.
        names: The names of its slots, by the optimizer's keys.
        slots: The slots that exist, by the optimizer's keys: all or none.
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
        """Bytes of the state that the optimizer will make."""
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
                slot.version += 1  # nearly always: the optimizer changed its state in place
            else:
                store.put_slot(self.names[key], self.variable.name, tensor)


def missing_nbytes(variable: Variable, layout: StateLayout, slots: Mapping[str, Variable]) -> int:
    """Return the bytes of the state that an optimizer will make for a whole variable."""
    if len(slots) == len(layout):
        return 0
    return sum(
        state.shape(variable.value).numel() * state.dtype.itemsize
        for key, state in layout.items()
        if key not in slots
    )


def as_tensors(state: Mapping[str, Any], layout: StateLayout) -> dict[str, torch.Tensor]:
    """Return an optimizer's state as tensors of the layout's dtypes."""
    return {key: as_tensor(value, layout[key].dtype) for key, value in state.items()}


def as_tensor(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor or number of an optimizer's state as a tensor of a dtype."""
    # With 160 parameters, conversions that change nothing would take as long as a small step.
    if isinstance(value, torch.Tensor) and value.dtype == dtype:
        return value
    return torch.as_tensor(value).to(dtype)
