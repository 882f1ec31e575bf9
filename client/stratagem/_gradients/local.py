"""Optimizers of torch that run in this process, over copies of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import finalize

import torch
from torch.optim import Optimizer

from stratagem._core.distributed_values import select_replica
from stratagem._core.variables import Variable
from stratagem._gradients.step import GroupStep, OptimizerStep
from stratagem_proto.programs.optimizers import require_honoured, rule_named, values_of

Slots = dict[str, torch.Tensor]
"""An optimizer's state for one copy of a variable, by torch's keys."""


class LocalOptimizers:
    """Carries out steps on every copy of each variable, and keeps the state.

    Each copy has state of its own on its own device. Copies that are equal stay equal, because they
    all get the same gradient.
    """

    def __init__(self) -> None:
        # By id of the variable, which it goes with; then by optimizer and number of the copy.
        self._state: dict[int, dict[tuple[str, int], Slots]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalOptimizers:
        """Return one without state: optimizers stay with the strategy they were made for."""
        return LocalOptimizers()

    def _of(self, variable: Variable) -> dict[tuple[str, int], Slots]:
        """Return the state for a variable, by optimizer and number of the copy."""
        state = self._state.get(id(variable))
        if state is None:
            state = self._state[id(variable)] = {}
            finalize(variable, self._state.pop, id(variable), None).atexit = False
        return state

    def step(self, step: OptimizerStep, gradients: Sequence[Any]) -> None:
        """Apply the reduced gradient of each of `step.updates()`.

        That is a tensor, or one for each copy as `Mirrored`.
        """
        rest = iter(gradients)
        for group in step.groups:
            mine = [next(rest) for _ in group.updates]
            values = [update.variable.values for update in group.updates]
            for index, variables in enumerate(zip(*values, strict=True)):
                self._step_copies(step, group, index, variables, mine)

    def _step_copies(
        self,
        step: OptimizerStep,
        group: GroupStep,
        index: int,
        copies: Sequence[Variable],
        gradients: Sequence[Any],
    ) -> None:
        key = step.optimizer, index
        states = [self._of(update.variable) for update in group.updates]
        # Not the leaves themselves: their `grad` is the replica's own.
        tensors = [copy.value().detach() for copy in copies]
        engine = _engine(step.class_name, group.hyperparameters, tensors)
        for state, tensor, gradient in zip(states, tensors, gradients, strict=True):
            tensor.grad = _gradient_for(tensor, index, gradient)
            engine.state[tensor].update(state.get(key, {}))
        engine.step()
        for state, tensor in zip(states, tensors, strict=True):
            state[key] = engine.state[tensor]

    def names(self) -> list[str]:
        """Return the names of the optimizers that have state."""
        return sorted({name for state in list(self._state.values()) for name, _ in state})

    def slots(self, optimizer: str, variable: Variable) -> Slots:
        """Return copies of an optimizer's state for a variable; {} without any."""
        state = self._state.get(id(variable), {}).get((optimizer, 0), {})
        return {key: value.clone() for key, value in state.items()}

    def replace_slots(
        self, optimizer: str, variable: Variable, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """Replace an optimizer's state for every copy of a variable."""
        state = self._of(variable)
        for index, copy in enumerate(variable.values):
            state[optimizer, index] = {
                key: _slot_for(copy, key, value) for key, value in slots.items()
            }


def _engine(
    class_name: str, hyperparameters: Mapping[str, object], tensors: list[torch.Tensor]
) -> Optimizer:
    rule = rule_named(class_name)
    # What a program has put into a group since is refused as at the construction.
    require_honoured(rule, values_of(rule, hyperparameters))
    build: Callable[..., Optimizer] = rule.cls
    # Adagrad makes its state of this argument when it is built, and not of the group's.
    made = {key: hyperparameters[key] for key in _OF_FIRST_STATE if key in hyperparameters}
    return build([{**hyperparameters, "params": tensors}], **made)


_OF_FIRST_STATE = ("initial_accumulator_value",)


def _gradient_for(tensor: torch.Tensor, index: int, gradient: Any) -> torch.Tensor:
    own: torch.Tensor = select_replica(index, gradient)
    # Some optimizers use the gradient as scratch memory.
    return own.to(tensor.device, copy=own is gradient)


def _slot_for(variable: Variable, key: str, value: torch.Tensor) -> torch.Tensor:
    # torch keeps counts of steps on the CPU, whatever the parameter's device.
    device = value.device if key == "step" else variable.device
    return value.to(device, copy=True)
