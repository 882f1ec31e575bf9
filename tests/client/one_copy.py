"""A strategy that hosts modules: one copy of each value, apart from the modules.

The copies and the optimizers are torch's own, in this process, so that what it computes can be
compared with plain torch, and errors are not those of a wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

import stratagem
from stratagem._core.device_names import torch_device
from stratagem._core.variables import LocalVariable, Variable
from stratagem._gradients import OptimizerStep
from stratagem._hosting.adoption import Adoption
from stratagem._hosting.hosting import Hosting
from stratagem_proto.programs.optimizers import OPTIMIZERS
from tests.client import two_replicas


class OneCopy(stratagem.Strategy):
    """Replicas on the first logical CPUs."""

    def __init__(self, replicas: int = 1) -> None:
        super().__init__(OneCopyExtended(self, replicas))


class OneCopyExtended(two_replicas._Extended):
    def __init__(self, strategy: stratagem.Strategy, replicas: int) -> None:
        super().__init__(strategy, replicas)
        devices = [torch_device(device) for device in self._devices]
        self._hosting: OneCopyHosting = OneCopyHosting(self, devices)


class OneCopyHosting(Hosting):
    def __init__(
        self, extended: stratagem.StrategyExtended, devices: Sequence[torch.device]
    ) -> None:
        super().__init__(extended, devices)
        self.adopted: list[Adoption] = []
        self.steps: list[OptimizerStep] = []
        self._engines: dict[tuple[str, str], torch.optim.Optimizer] = {}

    def host(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            variable = LocalVariable(adoption.parameter, name=adoption.name)
            variable._join(self._extended._container_strategy())
            self.parameters.add(adoption.parameter, variable, adoption.owners)
            self.adopted.append(adoption)

    def before_replicas(self) -> None:
        super().before_replicas()
        for hosted in self.parameters.written_locally():
            hosted.variable.assign(hosted.parameter.detach())
            hosted.accept_everywhere()
        for hosted in self.parameters:
            hosted.write(hosted.variable.value())

    def apply_gradients(self, step: OptimizerStep) -> None:
        self.steps.append(step)
        for group in step.groups:
            for update in group.updates:
                engine = self._engine(step.optimizer, step.class_name, update.variable)
                engine.param_groups[0] |= group.hyperparameters
                _copy_in(engine).grad = step.reduced(update)
                engine.step()

    def _engine(self, optimizer: str, class_name: str, variable: Variable) -> torch.optim.Optimizer:
        key = optimizer, variable.name
        if key not in self._engines:
            # Not the leaf that the first replica differentiates with respect to.
            copy = variable.value().detach()
            self._engines[key] = OPTIMIZERS[class_name].cls([copy])  # type: ignore[call-arg]
        return self._engines[key]

    def slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Mapping[str, Tensor]]:
        return [self._state(optimizer, variable) for variable in variables]

    def _state(self, optimizer: str, variable: Variable) -> Mapping[str, Tensor]:
        engine = self._engines.get((optimizer, variable.name))
        state = {} if engine is None else engine.state[_copy_in(engine)]
        return {key: value.clone() for key, value in state.items()}

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Mapping[str, Tensor]]) -> None:
        for variable, state in slots.items():
            engine = self._engine(optimizer, "Adam", variable)
            copies = {key: value.clone() for key, value in state.items()}
            engine.state[_copy_in(engine)] = copies


def _copy_in(engine: torch.optim.Optimizer) -> Tensor:
    copy: Tensor = engine.param_groups[0]["params"][0]
    return copy


def hosting_in(strategy: stratagem.Strategy) -> OneCopyHosting:
    hosting = strategy.extended._hosting
    assert isinstance(hosting, OneCopyHosting)
    return hosting


def names_in(strategy: stratagem.Strategy) -> list[str]:
    """The names of the hosted parameters, in the order of their adoption."""
    return [hosted.name for hosted in hosting_in(strategy).parameters]
