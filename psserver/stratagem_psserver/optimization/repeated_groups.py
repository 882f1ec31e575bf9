"""Param groups that are stepped again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.optim import Optimizer

from stratagem_psserver.optimization.bindings import (
    ParameterBinding,
    WholeBinding,
    as_tensor,
)
from stratagem_psserver.optimization.certainty import NUMBERS, is_ordinary_state
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.single_steps import take_step
from stratagem_psserver.variables.store import Variable, VariableStore


class Gradients(NamedTuple):
    """What a step is taken with.

    Attributes:
        each: One for each variable, in their order.
        rows: Which rows of the variable it is of, in the same order; None for all.
            Empty if all are of all.
        joint: All of them as one vector, with gaps, in which they are where tensors
            of their sizes are in a segment; None if they do not lie so.
    """

    each: Sequence[torch.Tensor]
    rows: Sequence[torch.Tensor | None] = ()
    joint: torch.Tensor | None = None


class RepeatedGroup(Protocol):
    """Variables of one param group, and an optimizer that stays with them.

    Attributes:
        is_by_rows: Whether `step` changes copies of rows, which `put` writes.
    """

    is_by_rows: bool

    def accepts(self, groups: Sequence[Settings], gradients: Gradients) -> bool:
        """Takes other hyperparameters, unless the state is another one with them.

        Args:
            groups: Those of all groups.
            gradients: With which the step is to be taken. It is not if they do not fit,
                or if it may fail for its numbers.
        """

    def step(self, gradients: Gradients) -> None:
        """Changes variables and state, for given gradients of all of the step."""

    def put(self) -> None:
        """Writes what was stepped apart; call it when all groups are stepped."""

    def commit(self, store: VariableStore) -> None:
        """Lets the store know what has come of the state."""


@dataclass(eq=False)
class Parameter:
    """A variable with its state.

    Attributes:
        value: That of the variable.
        place: Of its gradient among those of the step.
        layout: Of the state.
        slots: Where the state is kept, by the optimizer's keys.
        state: What the optimizer makes of it.
    """

    value: torch.Tensor
    place: int
    layout: StateLayout
    slots: Mapping[str, Variable]
    state: dict[str, Any]

    @classmethod
    def of(cls, binding: ParameterBinding, place: int) -> Parameter | None:
        """It, if the gradient is dense and the state is there, all of it tensors."""
        if not isinstance(binding, WholeBinding) or len(binding.slots) < len(
            binding.layout
        ):
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
        """Whether the state lets no step fail."""
        for key in self._numbers:
            if not is_ordinary_state(key, self.state[key].item()):
                return False
        return True

    def commit(self, store: VariableStore) -> None:
        for key, value in self.state.items():
            slot = self.slots[key]
            if slot.value is value:
                slot.version += 1
            else:
                store.put_value(slot.name, as_tensor(value, self.layout[key].dtype))


class Group:
    """Variables that are stepped one after the other, in place.

    Args:
        number: Of the param group.
        settings: Its hyperparameters, which steps were taken with.
        parameters: The variables.
    """

    is_by_rows = False

    def __init__(
        self, number: int, settings: Settings, parameters: Sequence[Parameter]
    ) -> None:
        self._number, self.parameters = number, parameters
        self._dtypes = {each.value.dtype for each in parameters}
        self._settings = settings
        self._optimizer: Optimizer | None = None

    def accepts(self, groups: Sequence[Settings], gradients: Gradients) -> bool:
        return self.takes(groups) and all(
            [each.is_ordinary for each in self.parameters]
        )

    def takes(self, groups: Sequence[Settings]) -> bool:
        """As `accepts`, whatever the state."""
        settings = groups[self._number]
        if settings is not self._settings:
            for each in self.parameters:
                needs = settings.needs(each.value.dtype, sparse=False)
                if needs.layout is not each.layout:
                    return False
            self._settings, self._optimizer = settings, None
        return all([settings.is_ordinary(dtype) for dtype in self._dtypes])

    def put(self) -> None:
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
