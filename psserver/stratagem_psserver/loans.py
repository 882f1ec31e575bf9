"""What an optimizer is lent for a step, and what comes of it.

A dense gradient steps the variable's own tensor. A row-sparse one steps a copy of the
rows that it names, with a copy of the same rows of the state; they are put back when
the step has been taken. So the step costs what the rows cost, of whatever a variable
or a table is large; rows without a gradient stay as they are, state included; and a
step that fails has changed none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from stratagem_psserver.gradients import Gradient, as_sparse
from stratagem_psserver.rehearsal import Rehearsed, StateLayout
from stratagem_psserver.store import Variable, VariableStore


class Loan(Protocol):
    """A variable lent to an optimizer for one step.

    Attributes:
        variable: The variable that is stepped.
        tensor: The parameter as the optimizer sees it.
        gradient: Its gradient.
        state: Its state by key; empty where the optimizer begins it.
    """

    variable: Variable
    tensor: torch.Tensor
    gradient: torch.Tensor
    state: dict[str, Any]

    def open(self) -> None:
        """Takes what memory the step needs, and fills the attributes."""

    def close(self, state: Mapping[str, Any]) -> None:
        """Takes back what the optimizer has made."""

    def commit(self, store: VariableStore) -> None:
        """Lets the store know the state's variables."""


@dataclass
class WholeLoan:
    """A variable with a dense gradient."""

    variable: Variable
    gradient: torch.Tensor
    layout: StateLayout
    slots: Mapping[str, Variable]
    names: Mapping[str, str]
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def tensor(self) -> torch.Tensor:
        return self.variable.value

    def open(self) -> None:
        self.state = {
            key: self.layout[key].lent(slot.value) for key, slot in self.slots.items()
        }

    def close(self, state: Mapping[str, Any]) -> None:
        self.state = as_tensors(state, self.layout)

    def commit(self, store: VariableStore) -> None:
        for key, tensor in self.state.items():
            store.put_slot(self.names[key], self.variable.name, tensor)


def as_tensors(state: Mapping[str, Any], layout: StateLayout) -> dict[str, Any]:
    """What an optimizer made, in the dtypes of the layout."""
    return {
        key: torch.as_tensor(value).to(layout[key].dtype)
        for key, value in state.items()
    }
