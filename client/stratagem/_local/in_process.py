"""What strategies share whose variables and replicas are all in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stratagem._core import device_names
from stratagem._core.device_names import torch_device
from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions
from stratagem._core.values.regroup import select_replica
from stratagem._core.variables.variable import Variable
from stratagem._gradients.local import LocalOptimizers
from stratagem._gradients.step import OptimizerStep
from stratagem._hosting.checkpoints import CheckpointedExtended
from stratagem._hosting.modules.adoption import Adoption

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy


class InProcessExtended(CheckpointedExtended):
    """Replicas on devices of this process, and torch's optimizers in it.

    What is left to a subclass is where variables live: `_create_variable`,
    `_host_one`, `_update`, `_update_non_slot` and `non_slot_devices`.

    Args:
        container_strategy: The strategy.
        devices: Full names of the replicas' devices.
    """

    def __init__(self, container_strategy: Strategy, devices: Sequence[str]) -> None:
        super().__init__(container_strategy)
        self._devices = tuple(devices)
        self._local_optimizers = LocalOptimizers()

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    def _replica_devices(self) -> Sequence[Any]:
        return [[device_names.current()]]

    @property
    def experimental_between_graph(self) -> bool:
        return False

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._run_replicas(self._devices, fn, args, kwargs)

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        return self._reduce_nest(reduce_op, value, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return self._place_value(tensor, destinations)

    def _host(self, adoptions: Sequence[Adoption]) -> None:
        first = torch_device(self._devices[0])
        for adoption in adoptions:
            parameter = adoption.parameter
            if parameter.device != first:
                parameter.data = parameter.detach().to(first)
            self._host_one(adoption)

    def _host_one(self, adoption: Adoption) -> None:
        """Make a variable of a parameter, which is on the first replica's device."""
        raise self._missing("_host_one")

    def _host_buffers(self, roots: Sequence[nn.Module]) -> None:
        first = torch_device(self._devices[0])
        for module in (part for root in roots for part in root.modules()):
            for key, buffer in module._buffers.items():
                if buffer is not None and buffer.device != first:
                    module._buffers[key] = buffer.to(first)
        super()._host_buffers(roots)

    def _apply_gradients(self, step: OptimizerStep) -> None:
        reduced = self._reduced_gradients(step)
        if step.limiter.limits:
            names = [update.variable.name for update in step.updates()]
            # Copies are equal, so the first one's gradient stands for all.
            first = [select_replica(0, gradient) for gradient in reduced]
            limited = step.limiter.limited(dict(zip(names, first, strict=True)))
            if limited is None:
                return
            reduced = list(limited.values())
        self._local_optimizers.step(step, reduced)

    def _reduced_gradients(self, step: OptimizerStep) -> list[Any]:
        """Return one gradient for each of `step.updates()`."""
        return [step.reduced(update) for update in step.updates()]

    def _stateful_optimizers(self) -> Iterable[str]:
        return self._local_optimizers.names()

    def _slots(
        self, optimizer: str, variables: Sequence[Variable]
    ) -> Sequence[Mapping[str, torch.Tensor]]:
        return [self._local_optimizers.slots(optimizer, one) for one in variables]

    def _set_slots(
        self, optimizer: str, slots: Mapping[Variable, Mapping[str, torch.Tensor]]
    ) -> None:
        for variable, state in slots.items():
            self._local_optimizers.replace_slots(optimizer, variable, state)
