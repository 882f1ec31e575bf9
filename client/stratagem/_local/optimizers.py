"""Optimizers of torch that step variables of this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import finalize

import torch
from torch.optim import Optimizer

from stratagem._core.distributed_values import select_replica
from stratagem._core.variables import Variable
from stratagem._gradients import GroupStep, OptimizerStep
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import (
    OPTIMIZERS,
    require_honoured,
    rule_named,
    values_of,
)
from stratagem_proto.rows import summed

Slots = dict[str, torch.Tensor]
"""An optimizer's state for one copy of a variable, by torch's keys."""


class LocalOptimizers:
    """Carries out steps on every copy of each variable, and keeps the state.

    Each copy has state of its own on its own device. Copies that are equal stay equal, because they
    all get the same gradient. Where an optimizer of torch takes no sparse gradient, it gets the
    rows of the gradient, and of its state, as a tensor of their own, as on servers.

    Args:
        as_servers: Whether it gets rows as well where it would keep sparse state.
    """

    def __init__(self, as_servers: bool = False) -> None:
        # By id of the variable, which it goes with; then by optimizer and number of the copy.
        self._state: dict[int, dict[tuple[str, int], Slots]] = {}
        self._as_servers = as_servers
        # By class, its hyperparameters but for the rate, and the dtype.
        self._by_rows: dict[tuple[object, ...], bool] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalOptimizers:
        """Return one without state: optimizers stay with the strategy they were made for."""
        return LocalOptimizers(self._as_servers)

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

        Raises:
            InvalidArgumentError: One is sparse, and the optimizer cannot step rows; nothing is
                changed.
        """
        rest = iter(gradients)
        each = [(group, [next(rest) for _ in group.updates]) for group in step.groups]
        are_by_rows = [self._steps_rows(step.class_name, *one) for one in each]
        for (group, mine), by_rows in zip(each, are_by_rows, strict=True):
            values = [update.variable.values for update in group.updates]
            for index, variables in enumerate(zip(*values, strict=True)):
                self._step_copies(step, group, index, variables, mine, by_rows)

    def _steps_rows(self, class_name: str, group: GroupStep, gradients: Sequence[Any]) -> bool:
        """Return whether an optimizer gets the rows of sparse gradients alone.

        Raises:
            InvalidArgumentError: It can step them in no way.
        """
        sparse = [first for one in gradients if (first := select_replica(0, one)).is_sparse]
        if not sparse:
            return False
        rule = rule_named(class_name)
        if not rule.steps_rows:
            raise InvalidArgumentError(
                f"{class_name} cannot step the rows of an embedding with sparse gradients; "
                f"{', '.join(name for name, one in OPTIMIZERS.items() if one.steps_rows)} can. "
                "Give the embedding an optimizer of its own, or make it with sparse=False"
            )
        values = values_of(rule, group.hyperparameters)
        rest = sorted((key, value) for key, value in values.items() if key != "lr")
        key = class_name, *rest, sparse[0].dtype
        if key not in self._by_rows:
            state = _state_of_sparse_step(class_name, group.hyperparameters, sparse[0].dtype)
            keeps_sparse = any(torch.is_tensor(one) and one.is_sparse for one in state or ())
            self._by_rows[key] = state is None or (keeps_sparse and self._as_servers)
        return self._by_rows[key]

    def _step_copies(
        self,
        step: OptimizerStep,
        group: GroupStep,
        index: int,
        copies: Sequence[Variable],
        gradients: Sequence[Any],
        by_rows: bool,
    ) -> None:
        key, hyperparameters = (step.optimizer, index), group.hyperparameters
        states = [self._of(update.variable) for update in group.updates]
        # Not the leaves themselves: their `grad` is the replica's own.
        tensors, rows = [copy.value().detach() for copy in copies], dict[int, _Rows]()
        for number, given in enumerate(gradients):
            own: torch.Tensor = select_replica(index, given)
            whole = tensors[number]
            # Some optimizers use the gradient as scratch memory.
            gradient = own.to(whole.device, copy=own is given)
            if by_rows and gradient.is_sparse:
                rows[number] = found = _Rows(whole, gradient)
                tensors[number], gradient = found.values, found.gradient
            tensors[number].grad = gradient
        engine = _engine(step.class_name, hyperparameters, tensors)
        for number, (state, tensor) in enumerate(zip(states, tensors, strict=True)):
            known = state.get(key, {})
            if number in rows:
                known = rows[number].begun(known, step.class_name, hyperparameters)
            engine.state[tensor].update(known)
        engine.step()
        for number, (state, tensor) in enumerate(zip(states, tensors, strict=True)):
            made = engine.state[tensor]
            if number in rows:
                first = float(cast("float", hyperparameters.get(_OF_FIRST_STATE[0], 0.0)))
                made = rows[number].ended(state.get(key, {}), made, first)
            state[key] = made

    def names(self) -> list[str]:
        """Return the names of the optimizers that have state."""
        return sorted({name for state in list(self._state.values()) for name, _ in state})

    def slots(self, optimizer: str, variable: Variable) -> Slots:
        """Return copies of an optimizer's state for a variable; {} without any."""
        state = self._state.get(id(variable), {}).get((optimizer, 0), {})
        # Files have no sparse tensors, and torch goes on with dense ones as well.
        return {
            key: value.to_dense() if value.is_sparse else value.clone()
            for key, value in state.items()
        }

    def replace_slots(
        self, optimizer: str, variable: Variable, slots: Mapping[str, torch.Tensor]
    ) -> None:
        """Replace an optimizer's state for every copy of a variable."""
        state = self._of(variable)
        for index, copy in enumerate(variable.values):
            # torch keeps counts of steps on the CPU, whatever the parameter's device.
            state[optimizer, index] = {
                key: value.to(value.device if key == "step" else copy.device, copy=True)
                for key, value in slots.items()
            }


class _Rows:
    """The rows of a tensor that a sparse gradient has, each once."""

    def __init__(self, whole: torch.Tensor, gradient: torch.Tensor) -> None:
        self._whole = whole
        self._rows, self.gradient = summed(gradient._indices()[0], gradient._values())
        self.values = whole.index_select(0, self._rows)

    def begun(self, state: Slots, class_name: str, hyperparameters: Mapping[str, object]) -> Slots:
        """Return their state before a step, given that of the whole."""
        if not state and class_name == "SGD" and hyperparameters.get("momentum"):
            # torch begins with the gradient, and a row that comes later would not.
            return {"momentum_buffer": torch.zeros_like(self.values)}
        return {
            key: one.index_select(0, self._rows) if one.dim() else one for key, one in state.items()
        }

    def ended(self, state: Slots, made: Mapping[str, Any], first: float) -> Slots:
        """Write rows and state back; return the state of the whole, whose other rows begin so."""
        self._whole.index_copy_(0, self._rows, self.values)
        for key, value in made.items():
            if value.dim():
                shape = (len(self._whole), *value.shape[1:])
                whole = state[key] if key in state else value.new_full(shape, first)
                state[key] = whole.index_copy_(0, self._rows, value)
            else:
                state[key] = value
        return state


def _state_of_sparse_step(
    class_name: str, hyperparameters: Mapping[str, object], dtype: torch.dtype
) -> list[Any] | None:
    """Return the state after a step by a sparse gradient; None where torch refuses that."""
    tensor = torch.zeros(1, 1, dtype=dtype)
    row = torch.zeros(1, 1, dtype=torch.int64)
    tensor.grad = torch.sparse_coo_tensor(row, tensor.clone(), (1, 1), check_invariants=False)
    engine = _engine(class_name, hyperparameters, [tensor])
    try:
        with torch.no_grad():
            # Without the hooks of the program.
            inspect.unwrap(type(engine).step)(engine)
    except RuntimeError:
        return None
    return [*engine.state[tensor].values()]


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
