"""Param groups of repeated steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.optim import Optimizer

from stratagem_psserver.optimization.bindings import ParameterBinding, WholeBinding, as_tensor
from stratagem_psserver.optimization.certainty import NUMBERS, is_ordinary_state
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.optimization.hyperparameters import GroupSettings
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.optimization.undo import Undo
from stratagem_psserver.variables.store import Variable, VariableStore


class Gradients(NamedTuple):
    """The gradients of one step.

    Attributes:
        each: The gradient of each variable, in the order of the variables.
        rows: The rows of each gradient, None for a dense one; empty if all are dense.
        flat: One vector of all gradients and the gaps between them, as they lie in shared memory;
            None if they do not.
    """

    each: Sequence[torch.Tensor]
    rows: Sequence[torch.Tensor | None] = ()
    flat: torch.Tensor | None = None


class RepeatedGroup(Protocol):
    """Variables of one param group, with an optimizer that is kept for them.

    Attributes:
        is_by_rows: Whether `step` changes copies of rows, which `put` writes back.
    """

    is_by_rows: bool

    def accepts(self, groups: Sequence[GroupSettings], gradients: Gradients) -> bool:
        """Adopt hyperparameters for the next step, and return whether the step can be repeated.

        It cannot if the hyperparameters need other state, if the gradients do not fit, or if a
        number is not ordinary, so that the step may fail.

        Args:
            groups: The settings of all groups.
            gradients: The gradients of the next step.
        """

    def step(self, gradients: Gradients) -> None:
        """Change variables and state, given the gradients of the whole step."""

    def put(self, undo: Undo) -> None:
        """Write back copies of rows; call it when all groups are stepped.

        Args:
            undo: Gets to know when something is changed.
        """

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""


@dataclass(eq=False)
class WholeParameter:
    """A variable that is stepped whole, with its state.

    Attributes:
        value: The variable's value.
        place: The place of its gradient among those of the step.
        layout: The layout of the state.
        slots: The variables that keep the state, by the optimizer's keys.
        state: The state as the optimizer holds it.
    """

    value: torch.Tensor
    place: int
    layout: StateLayout
    slots: Mapping[str, Variable]
    state: dict[str, Any]

    @classmethod
    def of(cls, binding: ParameterBinding, place: int) -> WholeParameter | None:
        """Return the variable if its gradient is dense and every state entry is a tensor."""
        if not isinstance(binding, WholeBinding) or len(binding.slots) < len(binding.layout):
            return None
        layout, slots = binding.layout, binding.slots
        state = {key: layout[key].bound(slot.value) for key, slot in slots.items()}
        if not all(isinstance(value, torch.Tensor) for value in state.values()):
            return None
        return cls(binding.variable.value, place, layout, slots, state)

    def __post_init__(self) -> None:
        self._numbers = [key for key in NUMBERS if key in self.state]

    @property
    def is_ordinary(self) -> bool:
        """Whether all numbers of the state are ordinary, so that no step fails because of them."""
        return all(is_ordinary_state(key, self.state[key].item()) for key in self._numbers)

    def commit(self, store: VariableStore) -> None:
        """Put the state into slot variables of the store."""
        for key, value in self.state.items():
            slot = self.slots[key]
            if slot.value is value:
                slot.version += 1
            else:
                store.put_value(slot.name, as_tensor(value, self.layout[key].dtype))


class WholeGroup:
    """Variables that are stepped one by one, in place.

    Args:
        number: The number of the param group.
        settings: The hyperparameters of the last step.
        parameters: The variables.
    """

    is_by_rows = False

    def __init__(
        self, number: int, settings: GroupSettings, parameters: Sequence[WholeParameter]
    ) -> None:
        self._number, self.parameters = number, parameters
        self._dtypes = {each.value.dtype for each in parameters}
        self._settings = settings
        self._optimizer: Optimizer | None = None

    def accepts(self, groups: Sequence[GroupSettings], gradients: Gradients) -> bool:
        return self.accepts_settings(groups) and all([each.is_ordinary for each in self.parameters])

    def accepts_settings(self, groups: Sequence[GroupSettings]) -> bool:
        """Adopt hyperparameters like `accepts`, without checking the numbers of the state."""
        settings = groups[self._number]
        if settings is not self._settings:
            for each in self.parameters:
                needs = settings.needs(each.value.dtype, sparse=False)
                if needs.layout is not each.layout:
                    return False
            self._settings, self._optimizer = settings, None
        return all([settings.is_ordinary(dtype) for dtype in self._dtypes])

    def put(self, undo: Undo) -> None:
        pass

    def step(self, gradients: Gradients) -> None:
        optimizer = self._optimizer = self._optimizer or self._made()
        try:
            for each in self.parameters:
                each.value.grad = gradients.each[each.place]
            take_step(optimizer, sparse=False)
        finally:
            for each in self.parameters:
                each.value.grad = None

    def _made(self) -> Optimizer:
        values = [each.value for each in self.parameters]
        optimizer = self._settings.prototype.optimizer(values, fresh=[])
        states = ((each.value, each.state) for each in self.parameters)
        optimizer.state = defaultdict(dict, states)
        return optimizer

    def commit(self, store: VariableStore) -> None:
        for each in self.parameters:
            each.commit(store)
