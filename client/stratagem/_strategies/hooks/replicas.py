"""Which replicas a strategy has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stratagem._core import device_names
from stratagem._core.tensors.nests import map_leaves, opened
from stratagem._core.values.distributed_values import DistributedValues
from stratagem._core.values.regroup import select_component
from stratagem._core.variables.variable import Variable
from stratagem._strategies.primitives import StrategyPrimitives
from stratagem_proto.errors import UnimplementedError


class ReplicaHooks(StrategyPrimitives):
    """Replicas, their devices, and what each of them has."""

    _default_device: str | None = None
    """The current device inside of the scope; None leaves it alone."""

    @property
    def worker_devices(self) -> Sequence[str]:
        """Full names of the devices that run replicas. Spec: EXT-11."""
        raise self._missing("worker_devices")

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self.worker_devices)

    @property
    def _num_local_replicas(self) -> int:
        """How many of the replicas in sync run in this process."""
        return self._num_replicas_in_sync

    @property
    def _first_replica_id(self) -> int:
        """Number, among all replicas in sync, of the first one of this process."""
        return 0

    def _replica_devices(self) -> Sequence[Any]:
        """Return the `ReplicaContext.devices` of the running replica."""
        return (device_names.current(),)

    def _current_device(self) -> str:
        return device_names.current() or self._default_device or "/device:CPU:0"

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the components of this process's replicas. Spec: LOC-1 to LOC-6."""
        if isinstance(value, DistributedValues | Variable):
            return value.values
        if opened(value) is None:
            return (value,)
        local = range(self._num_local_replicas)
        return tuple(
            map_leaves(partial(select_component, index), value) for index in local
        )

    def _of_first_replica(self, value: Any) -> Any:
        """Return what the first of all replicas in sync has.

        Args:
            value: What the first replica of this process has.
        """
        return value

    def _missing(self, member: str) -> UnimplementedError:
        return UnimplementedError(
            f"{type(self).__name__}.{member} must be implemented in descendants"
        )
