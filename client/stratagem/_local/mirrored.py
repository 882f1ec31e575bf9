"""A replica with a full copy of all variables on each of several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.device_names import list_logical_devices
from stratagem._core.distributed_variables.mirrored import (
    CopiedVariable,
    MirroredVariable,
    created_copies,
    require_mean_exists,
    require_supported,
)
from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.enums import VariableSynchronization
from stratagem._core.values.cross_device_ops import (
    CrossDeviceOps,
    default_cross_device_ops,
)
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.local import LocalVariable
from stratagem._core.variables.variable import Variable
from stratagem._local.copies import CopiesExtended
from stratagem._strategies.devices import distinct_devices
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class MirroredStrategy(Strategy):
    """Synchronous training on several devices of one machine.

    Each variable, and each parameter of a module built in scope, has a copy on every
    device. Gradients are reduced across devices, and every copy takes the same step.
    Buffers, such as running statistics, are each replica's own; the first one's last.

    Args:
        devices: Devices of the replicas; by default all GPUs, or without any all
            logical CPUs.
        cross_device_ops: How values of several devices are brought together; by
            default NCCL between GPUs, else a reduction to one device.

    Raises:
        InvalidArgumentError: A device is named twice, or is none of this process.
        InvalidTypeError: `cross_device_ops` is something else.

    Spec: MS-1 to MS-6, MS-12 to MS-14.
    """

    __module__ = "stratagem"

    def __init__(
        self,
        devices: Sequence[str | torch.device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
    ) -> None:
        chosen = devices or list_logical_devices("GPU") or list_logical_devices("CPU")
        names = distinct_devices(chosen)
        ops = cross_device_ops or default_cross_device_ops(names)
        if not isinstance(ops, CrossDeviceOps):
            raise InvalidTypeError(
                f"cross_device_ops must be CrossDeviceOps, not {ops!r}"
            )
        super().__init__(MirroredExtended(self, names, ops))


class MirroredExtended(CopiesExtended):
    """The `extended` of a `MirroredStrategy`."""

    _sync_on_read: type[SyncOnReadVariable] = SyncOnReadVariable

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        # Every variable is on all devices, whichever it is to be with.
        kwargs.pop("colocate_with", None)
        synchronization = kwargs["synchronization"]
        require_supported(kwargs["name"], synchronization)
        if synchronization is VariableSynchronization.AUTO:
            kwargs["synchronization"] = VariableSynchronization.ON_WRITE
        copies = self._created_copies(next_creator, kwargs)
        on_read = synchronization is VariableSynchronization.ON_READ
        kind = self._sync_on_read if on_read else MirroredVariable
        return kind(self._container_strategy(), copies)

    def _created_copies(
        self, next_creator: NextCreator, kwargs: dict[str, Any]
    ) -> list[Variable]:
        """Create the first copy, and the others from its value. Spec: VAR-3."""
        home, *others = self._devices
        first = self._first_copy(next_creator, **{**kwargs, "device": home})
        return created_copies(first, next_creator, others, kwargs)

    def read_var(self, v: Any) -> Any:
        if not isinstance(v, CopiedVariable):
            raise InvalidArgumentError(
                "`read_var` takes a variable that has a copy on each device, not "
                f"{v!r}; read others by read_value()"
            )
        return super().read_var(v)

    def _first_copy(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        first = next_creator(**kwargs)
        require_mean_exists(first)
        return first

    def _update_config_proto(self, config: ConfigProto) -> None:
        config.isolate_session_state = True

    def _united(self, copies: Sequence[LocalVariable]) -> Variable:
        return MirroredVariable(self._container_strategy(), copies)
