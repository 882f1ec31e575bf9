"""A replica with a full copy of all variables on each of several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.device_names import distinct_devices, list_logical_devices
from stratagem._core.reduction import CrossDeviceOps, default_cross_device_ops
from stratagem._core.variables import Variable
from stratagem._input.iterator import DistributedIterator
from stratagem._local.extended import CopiesExtended
from stratagem._local.replica_group import LocalReplicas
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidTypeError

if TYPE_CHECKING:
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class MirroredStrategy(Strategy):
    """Synchronous training on several devices of one machine.

    Each variable, and each parameter of a module built in scope, has a copy on every device.
    Gradients are reduced across devices, and every copy takes the same step. Buffers, such as
    running statistics, are each replica's own; the first one's last.

    Args:
        devices: Devices of the replicas; by default all GPUs, or without any all logical CPUs.
        cross_device_ops: How values of several devices are brought together; by default NCCL
            between GPUs, else a reduction to one device.

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
            raise InvalidTypeError(f"cross_device_ops must be CrossDeviceOps, not {ops!r}")
        super().__init__(MirroredExtended(self, LocalReplicas(names, ops)))


class MirroredExtended(CopiesExtended):
    """The `extended` of a strategy whose replicas run on devices of this process.

    Other processes may run more of the replicas, as the `ReplicaGroup` says.
    """

    @property
    def experimental_between_graph(self) -> bool:
        return self._replicas.between_graph

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._devices

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        return self._devices

    def _update_config_proto(self, config: ConfigProto) -> None:
        self._replicas.configure(config)

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
