"""Containers with one value per replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts.context import current_context, current_replica_id, get_strategy
from stratagem._core.deprecation import old_spelling
from stratagem._core.tensors.operators import Operators, TensorStandIn, is_in_place
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


class DistributedValues(DeviceAccess):
    """One value per replica, in replica order.

    Args:
        values: The components; or a mapping of devices to them, as up to 1.13.

    Spec: VAL-1.
    """

    def __init__(self, values: Sequence[Any] | Mapping[str | torch.device, Any]) -> None:
        if isinstance(values, Mapping):
            self._device_names = tuple(map(device_names.canonicalize, values))
            values = tuple(values.values())
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """The components, in replica order."""
        return self._values

    def _component(self) -> Any:
        """Return the component that the context of this thread selects.

        Spec: VAL-3.
        """
        index = current_replica_id()
        if index is None:
            return self._primary()
        if index >= len(self._values):
            raise InvalidArgumentError(
                f"{self!r} has {len(self._values)} components, and none for replica {index}; use "
                "values of this strategy, which has more replicas than the one that made them"
            )
        return self._values[index]

    def _primary(self) -> Any:
        here = device_names.current()
        for value in self._values if here else ():
            if _device_name(value) == here:
                return value
        return self._values[0]

    def _operand(self) -> Any:
        return self._component()

    def __repr__(self) -> str:
        lines = [f"  {i}: {value!r}" for i, value in enumerate(self._values)]
        return type(self).__name__ + ":{\n" + ",\n".join(lines) + "\n}"


class PerReplica(DistributedValues):
    """Values that differ between replicas; typically what `run` returns.

    It has no arithmetic: reduce it first, or use it in a replica function.
    Spec: VAL-4.
    """

    without_rows: tuple[int, ...] = ()
    """The replicas that had no data when they returned their component."""

    def _operand(self) -> Any:
        context = current_context()
        # An update of the only copy of a variable is of all replicas.
        in_one = context is not None and (context.replica_context or context.written is not None)
        if not in_one or context is None or context.component is None:
            raise InvalidArgumentError(
                "You are using a PerReplica object while not inside a replica context; "
                "pass it to a function by strategy.run(), or combine its "
                f"{len(self._values)} values by strategy.reduce()"
            )
        return self._component()


class Mirrored(Operators, DistributedValues):
    """Values that are equal on all replicas.

    Operators, attributes and torch functions see the component of the context.
    Spec: VAL-5, VAL-7.
    """

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling probe for dunders before `_values` exists.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        component = self._target(name) if is_in_place(name) else self._component()
        return getattr(component, name)

    def _target(self, function: str) -> Any:
        if current_replica_id() is None and len(self._values) > 1:
            raise InvalidArgumentError(
                f"torch's {function} would write to one of the {len(self._values)} "
                "equal components of a Mirrored, which would part; make new values by "
                "an operator, or write to each of strategy.experimental_local_results()"
            )
        return self._component()


def _device_name(value: Any) -> str | None:
    # A CPU tensor does not know on which of the logical CPUs it lives.
    name = getattr(value, "device_name", None)
    device = getattr(value, "device", None)
    if name is None and device is not None and device.type != "cpu":
        return device_names.canonicalize(device)
    return name if isinstance(name, str) else None
