"""What a parameter-server strategy is made of where there is no cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from stratagem._enums import ReduceOp
from stratagem._modules.adoption import Adoption
from stratagem._modules.extended import HostingExtended
from stratagem._optimizers.step import OptimizerStep
from stratagem._options import CommunicationOptions
from stratagem._parameter_server.variable_placement import VariablePlacement
from stratagem._replicas.reduction import place, reduce_nest
from stratagem._replicas.threads import run_replicas
from stratagem._strategies.local_updates import LocalUpdates
from stratagem._variables.aggregating import AggregatingVariable
from stratagem._variables.creators import NextCreator
from stratagem._variables.local import LocalVariable
from stratagem._variables.variable import Variable
from stratagem_proto.optimizers import rule_named

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


class LocalExtended(LocalUpdates, HostingExtended):
    """One copy of each variable, in this process.

    Args:
        container_strategy: The strategy.
        devices: Full names of the replicas' devices.

    Spec: PS1-1.
    """

    def __init__(self, container_strategy: Strategy, devices: Sequence[str]) -> None:
        super().__init__(container_strategy)
        self._devices = tuple(devices)
        self._home = devices[0] if len(devices) == 1 else _CPU
        self._state: dict[tuple[str, str], dict[str, torch.Tensor]] = {}

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self._devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self._home,)

    @property
    def experimental_between_graph(self) -> bool:
        return True

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    def variable_placements(self) -> list[VariablePlacement]:
        """Return where each variable lives: in this process."""
        owners = [hosted.variable for hosted in self._parameters]
        owners += [one for one in self._names.owners() if isinstance(one, Variable)]
        return [
            VariablePlacement(
                variable.name,
                tuple(variable.shape),
                variable.dtype,
                "/job:localhost/task:0",
                variable.shape.numel() * variable.dtype.itemsize,
            )
            for variable in owners
        ]

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        variable = next_creator(**{"device": self._home, **kwargs})
        if len(self._devices) == 1:
            return variable
        return AggregatingVariable(self._container_strategy(), variable)

    def _host(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            parameter = adoption.parameter
            variable = LocalVariable(
                parameter, parameter.requires_grad, adoption.name, device=self._home
            )
            variable._join(self._container_strategy())
            self._parameters.add(parameter, variable, adoption.owners)

    def _before_replicas(self) -> None:
        super()._before_replicas()
        for hosted in self._parameters.written_locally():
            hosted.variable.assign(hosted.parameter.detach())
            hosted.settle()
        for hosted in self._parameters:
            hosted.write(hosted.variable.value())

    def _barrier(self, name: str, passed: int, timeout: float | None) -> None:
        """This process is the only one."""

    def _close(self) -> None:
        """There are no sessions to end."""

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return run_replicas(self._container_strategy(), self._devices, fn, args, kwargs)

    def _apply_gradients(self, step: OptimizerStep) -> None:
        build: Callable[..., Optimizer] = rule_named(step.class_name).cls
        for group in step.groups:
            for update in group.updates:
                leaf, key = update.variable.value(), _key(step, update.variable)
                engine = build([{**group.hyperparameters, "params": [leaf]}])
                engine.state[leaf].update(self._state.get(key, {}))
                leaf.grad = step.reduced(update).to(leaf.device)
                engine.step()
                leaf.grad = None
                self._state[key] = engine.state[leaf]

    def _slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        states = [self._state.get((optimizer, one.name), {}) for one in variables]
        return [{key: slot.clone() for key, slot in s.items()} for s in states]

    def _set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        for variable, state in slots.items():
            self._state[optimizer, variable.name] = dict(state)

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        return place(reduce_nest(reduce_op, value, len(self._devices)), destinations)


def _key(step: OptimizerStep, variable: Variable) -> tuple[str, str]:
    return step.optimizer, variable.name
