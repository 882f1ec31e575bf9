"""A replica with a full copy of all variables on each of several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.device_names import canonicalize, list_logical_devices
from stratagem._core.distributed_variables.mirrored import (
    CopiedVariable,
    MirroredVariable,
    created_copies,
    require_mean_exists,
    require_supported,
)
from stratagem._core.distributed_variables.sync_on_read import SyncOnReadVariable
from stratagem._core.distributed_variables.updating import run_updates
from stratagem._core.enums import ReduceOp, VariableSynchronization
from stratagem._core.options import CommunicationOptions
from stratagem._core.values.cross_device_ops import (
    CrossDeviceOps,
    default_cross_device_ops,
)
from stratagem._core.values.distributed_values import Mirrored, PerReplica
from stratagem._core.values.placement import at_destinations, components
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.local import LocalVariable
from stratagem._core.variables.variable import Variable
from stratagem._input.iterator import DistributedIterator
from stratagem._local.copies import CopiesHosting, CopyOperations
from stratagem._local.hosting import LocalHosting
from stratagem._strategies.devices import distinct_devices
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.multi_step import MultiStepContext
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


class MirroredExtended(StrategyExtended):
    """The `extended` of a `MirroredStrategy`: a copy of each variable on each device.

    Args:
        container_strategy: The strategy.
        devices: Full names of the replicas' devices.
        cross_device_ops: How values of several devices are brought together.
    """

    _hosting: LocalHosting
    _sync_on_read: type[SyncOnReadVariable] = SyncOnReadVariable

    def __init__(
        self,
        container_strategy: Strategy,
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps,
    ) -> None:
        super().__init__(container_strategy)
        self._devices = tuple(devices)
        self._cross_device_ops = cross_device_ops
        self._hosting = self._new_hosting()

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

    def _new_hosting(self) -> LocalHosting:
        operations = CopyOperations(self._cross_device_ops, self._united)
        return CopiesHosting(self, self._devices, operations)

    # Replicas.

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._devices

    def _replica_devices(self) -> Sequence[Any]:
        return [[device_names.current()]]

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._run_replicas(self._devices, fn, args, kwargs)

    # Variables.

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

    # Values.

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        def reduced(leaf: Any, destination: Any) -> Any:
            parts = components(leaf)
            if parts is None:
                return self._reduce_nest(reduce_op, leaf, destination)
            if isinstance(leaf, Mirrored | MirroredVariable):
                return mean_of_equals(reduce_op, leaf)
            ops, value = self._cross_device_ops, PerReplica(parts)
            return ops.reduce(reduce_op, value, destination, options)

        return at_destinations(reduced, value, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return self._place_value(tensor, destinations)
        return self._cross_device_ops.broadcast(tensor, destinations)

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        return self._run_steps(fn, iterator, iterations, initial_loop_values)

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        owner = getattr(var, "distribute_strategy", None)
        strategy = self._container_strategy()
        if owner is not strategy:
            raise InvalidArgumentError(
                "`update` takes a variable that was created in this strategy's scope, "
                f"not {var!r}"
            )
        copies = self.value_container(var).values
        calls = [partial(fn, copy) for copy in copies]
        return run_updates(strategy, self._devices, calls, args, kwargs, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        if not isinstance(colocate_with, tuple):
            raise InvalidTypeError(
                "`update_non_slot` takes a tuple of devices, as `non_slot_devices` "
                f"returns it, not {colocate_with!r}"
            )
        devices = [canonicalize(device) for device in colocate_with]
        strategy, calls = self._container_strategy(), [fn] * len(devices)
        return run_updates(strategy, devices, calls, args, kwargs, group)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        return tuple(self._devices)

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if colocate_with_variable != self.non_slot_devices(()):
            super()._validate_colocate_with(colocate_with_variable)


def mean_of_equals(op: ReduceOp, value: Any) -> Any:
    """Return the mean of a value whose copies are equal.

    Raises:
        InvalidArgumentError: Another reduction is asked for.
    """
    if op is ReduceOp.MEAN:
        return value
    raise InvalidArgumentError(
        f"Cannot reduce {value!r} by {op}: its copies are equal by definition, so that "
        "their sum is probably not meant; use ReduceOp.MEAN, or multiply it yourself"
    )
