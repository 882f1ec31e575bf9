"""Modules of a program whose optimizers step on hosts, and what hosts know of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from stratagem._core.reduction import CrossDeviceOps
from stratagem._core.variables import Variable
from stratagem._gradients import LocalOptimizers
from stratagem._hosting.hosting import Slots
from stratagem._local.hosting import CopiesHosting, Unite
from stratagem._strategies.extended import StrategyExtended
from stratagem._tpu.answers import HostAnswer, malformed
from stratagem._tpu.call import Writes
from stratagem._tpu.values import Marks, Valued, variable_of, write


class Memory:
    """Tells what the hosts do not know yet, and takes over what they have changed."""

    def __init__(self, optimizers: LocalOptimizers) -> None:
        self._optimizers = optimizers
        self._marks = Marks()
        # The name of the optimizer and that of the variable.
        self._new_slots: set[tuple[str, str]] = set()

    @property
    def has_new_slots(self) -> bool:
        """Whether there is state of optimizers that the hosts do not know."""
        return bool(self._new_slots)

    def set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        """Replace an optimizer's state here, and on the hosts with the next call."""
        for variable, state in slots.items():
            self._optimizers.replace_slots(optimizer, variable, state)
            self._new_slots.add((optimizer, variable.name))

    def writes(self, state: Sequence[Valued]) -> Writes:
        """Return what the hosts do not know of all variables and parameters."""
        variables = [*map(variable_of, state)]
        values = {
            position: tensor.detach()
            for position, tensor in enumerate(map(_value, variables))
            if self._marks.is_new(variables[position], tensor)
        }
        slots = [
            (optimizer, position, self._optimizers.slots(optimizer, variable))
            for position, variable in enumerate(variables)
            for optimizer, name in sorted(self._new_slots)
            if name == variable.name
        ]
        return Writes(values, slots)

    def told(self, state: Sequence[Valued], writes: Writes) -> None:
        """Note that the hosts know what they were told."""
        variables = [*map(variable_of, state)]
        for position in writes.values:
            self._mark(variables[position])
        for optimizer, position, _ in writes.slots:
            self._new_slots.discard((optimizer, variables[position].name))

    def require_fitting(
        self,
        state: Sequence[Valued],
        modules: Sequence[nn.Module],
        answer: HostAnswer,
        sender: str,
    ) -> None:
        """Check that what a host has changed is of variables and buffers that there are.

        Raises:
            MalformedStreamError: It is not.
        """
        for position, value in answer.values.items():
            if not 0 <= position < len(state):
                raise malformed(sender, f"a value of variable {position} of {len(state)}")
            variable = variable_of(state[position])
            if value.shape != variable.shape:
                raise malformed(sender, f"{variable.name!r} in the shape {tuple(value.shape)}")
        for position, key in answer.buffers:
            if not 0 <= position < len(modules) or key not in modules[position]._buffers:
                raise malformed(sender, f"the buffer {key[:80]!r}, which no module has")

    def take_over(
        self, state: Sequence[Valued], modules: Sequence[nn.Module], answer: HostAnswer
    ) -> None:
        """Take over what a host has changed, in cross-replica context."""
        for position, value in answer.values.items():
            write(state[position], value)
            self._mark(variable_of(state[position]))
        with torch.no_grad():
            for (position, key), value in answer.buffers.items():
                buffer = modules[position]._buffers[key]
                if buffer is not None and not torch.equal(buffer, value):
                    buffer.copy_(value)

    def _mark(self, variable: Variable) -> None:
        self._marks.mark(variable, _value(variable))


class OptimizersOnHosts(Protocol):
    """Knows the state of optimizers on the hosts."""

    def optimizers_with_state(self) -> list[str]:
        """Return the names of the optimizers that have state there."""

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots] | None:
        """Return the state there for each variable; None while there are no hosts."""


class HostsHosting(CopiesHosting):
    """Hosts modules in the program, while their optimizers step on the hosts."""

    def __init__(
        self,
        extended: StrategyExtended,
        names: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        unite: Unite,
        on_hosts: OptimizersOnHosts,
    ) -> None:
        super().__init__(extended, names, cross_device_ops, unite)
        self._on_hosts = on_hosts
        self.memory = Memory(self.optimizers)

    def begin_session(self, keep_slots: bool) -> None:
        """Note that the next hosts know nothing; `keep_slots` of optimizers that are known here."""
        if not keep_slots:
            self.optimizers = LocalOptimizers()
        self.memory = Memory(self.optimizers)

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        found = self._on_hosts.slots(optimizer, variables)
        return super().slots(optimizer, variables) if found is None else found

    def all_slots(self, optimizer: str) -> Mapping[Variable, Slots]:
        """Return the state for all variables."""
        variables = self.variables()
        return dict(zip(variables, self.slots(optimizer, variables), strict=True))

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        self.memory.set_slots(optimizer, slots)

    def stateful_optimizers(self) -> Iterable[str]:
        there = self._on_hosts.optimizers_with_state()
        return sorted({*super().stateful_optimizers(), *there})


def _value(variable: Variable) -> torch.Tensor:
    return variable.values[0].value()
