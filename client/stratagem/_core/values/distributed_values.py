"""Containers with one value per replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stratagem._core import device_names
from stratagem._core.contexts.context import current_context, current_replica_id
from stratagem._core.tensors.operators import Operators
from stratagem._core.tensors.torch_writes import is_in_place
from stratagem._core.values.device_access import DeviceAccess
from stratagem_proto.errors import InvalidArgumentError


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
        return self._primary() if index is None else self._values[index]

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
        if context is None or context.component is None:
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
