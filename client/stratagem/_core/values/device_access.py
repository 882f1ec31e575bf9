"""How components of distributed values were got by device, up to version 1.13."""

from __future__ import annotations

from typing import Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts.context import get_strategy
from stratagem._core.deprecation import old_spelling
from stratagem._core.tensors.operators import TensorStandIn
from stratagem_proto.errors import InvalidArgumentError


class DeviceAccess(TensorStandIn):
    """Access to components by the device that they are on.

    The devices are those that the values were made with. Where they were made without, they are the
    replicas' devices of the strategy in scope.

    Spec: VAL-2.
    """

    _device_names: tuple[str, ...] | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        raise NotImplementedError

    @property
    @old_spelling("strategy.extended.worker_devices")
    def devices(self) -> tuple[str, ...]:
        """Full names of the components' devices, in replica order."""
        return self._named_devices()

    @old_spelling("strategy.experimental_local_results(value)")
    def get(self, device: str | torch.device | None = None) -> Any:
        """Return the component on a device.

        Args:
            device: The device; by default the component that the context selects.

        Raises:
            InvalidArgumentError: No component is there.
            ContextError: The devices are not known, as no strategy is in scope.
        """
        if device is None:
            return self._component()
        name, known = device_names.canonicalize(device), self._named_devices()
        if name not in known:
            raise InvalidArgumentError(f"Device {name} not found in {list(known)} of {self!r}")
        return self.values[known.index(name)]

    @old_spelling("strategy.extended.worker_devices")
    def on_device(self, device: str | torch.device) -> bool:
        """Return whether a component is on a device."""
        return device_names.canonicalize(device) in self._named_devices()

    @property
    @old_spelling("isinstance() of the components")
    def is_tensor_like(self) -> bool:
        """Whether torch functions take every component as a tensor."""
        kinds = (torch.Tensor, TensorStandIn)
        return all(isinstance(value, kinds) for value in self.values)

    def _component(self) -> Any:
        raise NotImplementedError

    def _named_devices(self) -> tuple[str, ...]:
        if self._device_names is not None:
            return self._device_names
        names = tuple(get_strategy().extended.worker_devices)
        if len(names) != len(self.values):
            raise InvalidArgumentError(
                f"{self!r} has {len(self.values)} components, and the strategy in "
                f"scope {len(names)} devices; enter that of the one that made it"
            )
        return names
