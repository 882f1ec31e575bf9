"""Everything on one device, which need not be the default one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem._core.device_names import distinct_devices
from stratagem._core.reduction import ReductionToOneDevice
from stratagem._core.variable_creation import NextCreator
from stratagem._core.variables import LocalVariable, Variable
from stratagem._hosting.default_strategy import OneReplicaExtended
from stratagem._input.iterator import DistributedIterator
from stratagem._local.copies import CopiesHosting
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy


class OneDeviceStrategy(Strategy):
    """Variables and the only replica on one device.

    A way to try code that is written for several replicas: it takes the same paths.

    Args:
        device: The device, for instance "CPU:0", "cuda:1" or a `torch.device`.

    Raises:
        InvalidArgumentError: It names no device of this process.

    Spec: OD-1 to OD-4.
    """

    __module__ = "stratagem"

    def __init__(self, device: str | torch.device) -> None:
        super().__init__(_OneDeviceExtended(self, distinct_devices([device])))


class _OneDeviceExtended(OneReplicaExtended):
    def __init__(self, container_strategy: Strategy, devices: Sequence[str]) -> None:
        super().__init__(container_strategy)
        self._devices = tuple(devices)
        ops = ReductionToOneDevice()
        self._hosting = CopiesHosting(self, devices, ops, self._united)

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

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._devices

    def _replica_devices(self) -> Sequence[Any]:
        return self._devices

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._run_replicas(self._devices, fn, args, kwargs)

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        return self._run_steps(fn, iterator, iterations, initial_loop_values)

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        kwargs.pop("colocate_with", None)
        return next_creator(**{**kwargs, "device": self._devices[0]})

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        return tensor

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        return self._run_update(self._devices[0], fn, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        return self._devices

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if colocate_with_variable != self._devices:
            super()._validate_colocate_with(colocate_with_variable)

    def _united(self, copies: Sequence[LocalVariable]) -> Variable:
        (variable,) = copies
        variable._join(self._container_strategy())
        return variable
