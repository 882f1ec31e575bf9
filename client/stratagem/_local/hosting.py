"""Modules and optimizers of strategies whose variables are all in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem._core.values.regroup import select_replica
from stratagem._core.variables.variable import Variable
from stratagem._gradients.local import LocalOptimizers
from stratagem._gradients.step import OptimizerStep
from stratagem._hosting.elsewhere import MadeElsewhere
from stratagem._hosting.hosting import Hosting, Slots
from stratagem._hosting.modules.adoption import Adoption
from stratagem._local.checkpoints import LocalCheckpoints
from stratagem._strategies.extended import StrategyExtended

if TYPE_CHECKING:
    from stratagem._checkpoints.deferred import Restoration


class LocalHosting(Hosting):
    """Hosts modules in this process, and steps torch's optimizers in it.

    Attributes:
        optimizers: Torch's optimizers.
    """

    def __init__(
        self,
        extended: StrategyExtended,
        devices: Sequence[torch.device],
        elsewhere: MadeElsewhere | None = None,
    ) -> None:
        super().__init__(extended, devices, elsewhere)
        self.optimizers = LocalOptimizers()
        self._checkpoints = LocalCheckpoints(self)

    # Modules.

    def _host_across_replicas(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            self._checkpoints.restore_parameter(adoption)
        super()._host_across_replicas(adoptions)
        self._checkpoints.restore_slots_of(adoptions)

    def host(self, adoptions: Sequence[Adoption]) -> None:
        for adoption in adoptions:
            parameter = adoption.parameter
            if parameter.device != self.devices[0]:
                parameter.data = parameter.detach().to(self.devices[0])
            self.host_one(adoption)

    @abstractmethod
    def host_one(self, adoption: Adoption) -> None:
        """Make a variable of a parameter, which is on the first replica's device."""

    def host_buffers(self, roots: Sequence[nn.Module]) -> None:
        for module in (part for root in roots for part in root.modules()):
            for key, buffer in module._buffers.items():
                if buffer is not None and buffer.device != self.devices[0]:
                    module._buffers[key] = buffer.to(self.devices[0])
        self._checkpoints.restore_buffers()
        super().host_buffers(roots)

    def variables(self) -> list[Variable]:
        """Return the variables that still live, those of parameters first."""
        hosted = [hosted.variable for hosted in self.parameters]
        owners = self._extended._names.owners()
        return [*hosted, *(one for one in owners if isinstance(one, Variable))]

    # Optimizers.

    def apply_gradients(self, step: OptimizerStep) -> None:
        reduced = self.reduced_gradients(step)
        if step.limiter.limits:
            names = [update.variable.name for update in step.updates()]
            # Copies are equal, so the first one's gradient stands for all.
            first = [select_replica(0, gradient) for gradient in reduced]
            limited = step.limiter.limited(dict(zip(names, first, strict=True)))
            if limited is None:
                return
            reduced = list(limited.values())
        self.optimizers.step(step, reduced)

    def reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        """Return one gradient for each of `step.updates()`."""
        return [step.reduced(update) for update in step.updates()]

    def stateful_optimizers(self) -> Iterable[str]:
        """Return the names of the optimizers that have state."""
        return self.optimizers.names()

    def slots(self, optimizer: str, variables: Sequence[Variable]) -> Sequence[Slots]:
        return [self.optimizers.slots(optimizer, one) for one in variables]

    def set_slots(self, optimizer: str, slots: Mapping[Variable, Slots]) -> None:
        for variable, state in slots.items():
            self.optimizers.replace_slots(optimizer, variable, state)

    # Checkpoints.

    def created(self, variable: Variable) -> None:
        self._checkpoints.restore_variable(variable)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._checkpoints.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> Restoration:
        return self._checkpoints.load(state, strict)
