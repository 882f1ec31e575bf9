"""A replica with a full copy of all variables on each of several devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.device_names import canonicalize, distinct_devices, list_logical_devices
from stratagem._core.distributed_values import Mirrored, PerReplica, at_destinations, components
from stratagem._core.distributed_variables import (
    CopiedVariable,
    MirroredVariable,
    SyncOnReadVariable,
    copy_name,
)
from stratagem._core.options import (
    CommunicationOptions,
    InputContext,
    ReduceOp,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core.reduction import (
    Axis,
    CrossDeviceOps,
    combine,
    default_cross_device_ops,
    gather,
    reduce_axes,
    reduce_nest,
)
from stratagem._core.update_functions import run_updates
from stratagem._core.variable_creation import NextCreator
from stratagem._core.variables import LocalVariable, Variable
from stratagem._hosting.other_steps import workers
from stratagem._input.iterator import DistributedIterator
from stratagem._local.hosting import CopiesHosting, Unite
from stratagem._local.one_process import OneProcessStrategy
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker
    from stratagem.cluster_resolver import ClusterResolver
    from stratagem_proto.input_order import BatchRead
    from stratagem_proto.v1.cluster_pb2 import ConfigProto

EQUAL_COPIES = (Mirrored, MirroredVariable)
"""Values whose components are equal by definition."""


class AcrossReplicas(ABC):
    """Brings values of all replicas in sync together.

    Each method is what the hook of that name does in a `StrategyExtended`.
    """

    @abstractmethod
    def reduce_to(
        self, op: ReduceOp, pairs: Sequence[tuple[Any, Any]], options: CommunicationOptions | None
    ) -> list[Any]:
        """Reduce each value of pairs, and copy the result to its destinations."""

    @abstractmethod
    def reduce_axes(self, op: ReduceOp, nest: Any, axis: Axis) -> Any:
        """Reduce each leaf over dimensions of its own and over replicas."""

    @abstractmethod
    def gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        """Concatenate the components of each value, in the order of replicas."""

    @abstractmethod
    def lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        """Return where in concatenations the parts of this process begin."""

    @abstractmethod
    def combine_copies(self, op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        """Reduce the copies of a variable."""

    @abstractmethod
    def of_first(self, value: Any) -> Any:
        """Return what the first of all replicas has."""


class AcrossDevices(AcrossReplicas):
    """Brings values together where all replicas are in one process."""

    def __init__(self, cross_device_ops: CrossDeviceOps, count: Callable[[], int]) -> None:
        self._cross_device_ops = cross_device_ops
        self._count = count

    def reduce_to(
        self, op: ReduceOp, pairs: Sequence[tuple[Any, Any]], options: CommunicationOptions | None
    ) -> list[Any]:
        def reduced(leaf: Any, destination: Any) -> Any:
            parts = components(leaf)
            if parts is None:
                return reduce_nest(op, leaf, destination, self._count())
            if isinstance(leaf, EQUAL_COPIES):
                return mean_of_equals(op, leaf)
            values = PerReplica(parts)
            return self._cross_device_ops.reduce(op, values, destination, options)

        return [at_destinations(reduced, value, where) for value, where in pairs]

    def reduce_axes(self, op: ReduceOp, nest: Any, axis: Axis) -> Any:
        return reduce_axes(op, nest, axis, self._count())

    def gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        return [gather(value, axis) for value in values]

    def lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        return [0] * len(lengths)

    def combine_copies(self, op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        total = combine(op, copies)
        assert isinstance(total, torch.Tensor)
        return total

    def of_first(self, value: Any) -> Any:
        return value


def mean_of_equals(op: ReduceOp, value: Any) -> Any:
    """Return the mean of a value whose copies are equal; refuse any other reduction."""
    if op is ReduceOp.MEAN:
        return value
    raise InvalidArgumentError(
        f"Cannot reduce {value!r} by {op}: its copies are equal by definition, so that "
        "their sum is probably not meant; use ReduceOp.MEAN, or multiply it yourself"
    )


class ReplicaGroup(ABC):
    """The replicas in sync, of which each process runs equally many.

    Attributes:
        across: Brings values of all replicas together.
        size: The number of processes.
        rank: The number of this process among them; the chief's is 0.
        default_device: The current device inside of the strategy's scope, or None.
        between_graph: Whether each process runs the user's program.
        sync_on_read: The class of variables of which each replica writes its own copy.
    """

    across: AcrossReplicas
    size: int = 1
    rank: int = 0
    default_device: str | None = None
    between_graph: bool = False
    sync_on_read: type[SyncOnReadVariable] = SyncOnReadVariable

    def __init__(self, devices: Sequence[str], cross_device_ops: CrossDeviceOps) -> None:
        self.devices: tuple[str, ...] = tuple(devices)
        self.cross_device_ops = cross_device_ops

    @abstractmethod
    def host(self, extended: StrategyExtended, unite: Unite) -> CopiesHosting:
        """Return what hosts modules for the strategy of these replicas."""

    @abstractmethod
    def configure(self, config: ConfigProto) -> None:
        """Change a session's configuration, in place, to what is needed."""

    @abstractmethod
    def start_alike(self, variable: Variable) -> None:
        """Give a variable that was just created the value that the chief has."""

    @abstractmethod
    def note_write(self, variable: Variable) -> None:
        """Have other processes check that they have written the same into a mirrored variable."""

    @abstractmethod
    def share_order(self, worker: InputWorker) -> InputWorker:
        """Return a reader that shuffles as all processes do, and compares what it reads."""

    @abstractmethod
    def input_left(self, here: bool, read: BatchRead | None) -> bool:
        """Return whether any process has input for one more step.

        Raises:
            InvalidArgumentError: They have read different data.
        """


class LocalReplicas(ReplicaGroup):
    """Replicas that are all in this process."""

    def __init__(self, devices: Sequence[str], cross_device_ops: CrossDeviceOps) -> None:
        super().__init__(devices, cross_device_ops)
        self.across = AcrossDevices(cross_device_ops, self.count)

    def count(self) -> int:
        """Return the number of replicas."""
        return len(self.devices)

    def host(self, extended: StrategyExtended, unite: Unite) -> CopiesHosting:
        return CopiesHosting(extended, self.devices, self.cross_device_ops, unite)

    def configure(self, config: ConfigProto) -> None:
        config.isolate_session_state = True

    def start_alike(self, variable: Variable) -> None:
        """Leave the variable as it is: there is no other process."""

    def note_write(self, variable: Variable) -> None:
        """Do nothing: there is no other process."""

    def share_order(self, worker: InputWorker) -> InputWorker:
        return worker

    def input_left(self, here: bool, read: BatchRead | None) -> bool:
        return here


def created_copies(
    first: Variable, next_creator: NextCreator, devices: Sequence[str], kwargs: dict[str, Any]
) -> list[Variable]:
    """Return a variable and copies of it, of the same value. Spec: VAR-3.

    Args:
        first: The variable.
        next_creator: Creates the copies.
        devices: Where to.
        kwargs: What `first` was created from.
    """
    value = {"initial_value": first.value().detach(), "dtype": None, "shape": None}
    return [first] + [
        next_creator(**{**kwargs, **value, "name": copy_name(first.name, number)}, device=device)
        for number, device in enumerate(devices, start=1)
    ]


class CopiesExtended(StrategyExtended):
    """Creates, updates and reduces where each replica has a copy of each variable.

    A subclass says on which devices the replicas run, and runs them.
    """

    _hosting: CopiesHosting

    def __init__(
        self,
        container_strategy: Strategy,
        replicas: ReplicaGroup,
        resolver: ClusterResolver | None = None,
    ) -> None:
        super().__init__(container_strategy)
        self._cluster_resolver = resolver
        self._replicas = replicas
        self._devices = replicas.devices
        self._default_device = replicas.default_device
        self._hosting = replicas.host(self, self._united)
        workers.add(container_strategy, has_others=replicas.size > 1)

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return self._replicas.rank == 0

    @property
    def should_save_summary(self) -> bool:
        return self._replicas.rank == 0

    # Replicas.

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._replicas.size * self._num_local_replicas

    @property
    def _num_local_replicas(self) -> int:
        return len(self.worker_devices)

    @property
    def _first_replica_id(self) -> int:
        return self._replicas.rank * len(self._devices)

    def _replica_devices(self) -> Sequence[Any]:
        return [[device_names.current()]]

    # Variables.

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        if self._hosting.elsewhere is not None:
            raise self._hosting.elsewhere.refusal(f"a variable, {kwargs['name']!r}")
        # Every variable is on all devices, whichever it is to be with.
        kwargs.pop("colocate_with", None)
        synchronization = kwargs["synchronization"]
        require_supported(kwargs["name"], synchronization)
        if synchronization is VariableSynchronization.AUTO:
            kwargs["synchronization"] = VariableSynchronization.ON_WRITE
        copies = self._created_copies(next_creator, kwargs)
        on_read = synchronization is VariableSynchronization.ON_READ
        kind = self._replicas.sync_on_read if on_read else MirroredVariable
        return kind(self._container_strategy(), copies)

    def _created_copies(self, next_creator: NextCreator, kwargs: dict[str, Any]) -> list[Variable]:
        """Create the first copy, and the others from its value. Spec: VAR-3."""
        home, *others = self._devices
        first = next_creator(**{**kwargs, "device": home})
        require_mean_exists(first)
        self._replicas.start_alike(first)
        return created_copies(first, next_creator, others, kwargs)

    def _united(self, copies: Sequence[LocalVariable]) -> Variable:
        return MirroredVariable(self._container_strategy(), copies)

    def read_var(self, v: Any) -> Any:
        if not isinstance(v, CopiedVariable):
            raise InvalidArgumentError(
                "`read_var` takes a variable that has a copy on each device, not "
                f"{v!r}; read others by read_value()"
            )
        return super().read_var(v)

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
                f"`update` takes a variable that was created in this strategy's scope, not {var!r}"
            )
        whole = self.value_container(var)
        calls = [
            (device, partial(fn, copy))
            for device, copy in zip(self._devices, whole.values, strict=True)
        ]
        return run_updates(strategy, calls, args, kwargs, group, whole)

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
        calls = [(canonicalize(device), fn) for device in colocate_with]
        return run_updates(self._container_strategy(), calls, args, kwargs, group)

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        if colocate_with_variable != self.non_slot_devices(()):
            super()._validate_colocate_with(colocate_with_variable)

    # Values.

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        pairs = [(value, destinations)]
        return self._replicas.across.reduce_to(reduce_op, pairs, options)[0]

    def _batch_reduce_to(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        across = self._replicas.across
        return across.reduce_to(reduce_op, value_destination_pairs, options)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return self._place_value(tensor, destinations)
        return self._replicas.cross_device_ops.broadcast(tensor, destinations)

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        reduced = self._replicas.across.reduce_axes(reduce_op, value, axis)
        return self._place_value(reduced, self._current_device())

    def _gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        return self._replicas.across.gathered(values, axis)

    def _lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        return self._replicas.across.lengths_before(lengths)

    def _combine_copies(self, reduce_op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        return self._replicas.across.combine_copies(reduce_op, copies)

    def _of_first_replica(self, value: Any) -> Any:
        return self._replicas.across.of_first(value)

    def _note_write(self, variable: Variable) -> None:
        self._replicas.note_write(variable)

    # Input.

    def _input_context(self) -> InputContext:
        replicas = self._replicas
        return InputContext(replicas.size, replicas.rank, self._num_replicas_in_sync)

    def _input_worker(self) -> InputWorker:
        return self._replicas.share_order(super()._input_worker())

    def _input_left(self, here: bool, read: BatchRead | None) -> bool:
        return self._replicas.input_left(here, read)


def require_supported(name: str, synchronization: VariableSynchronization) -> None:
    """Check that copies can be kept in this way.

    Raises:
        InvalidArgumentError: They cannot. Spec: VAR-20.
    """
    if synchronization is VariableSynchronization.NONE:
        raise InvalidArgumentError(
            "`NONE` variable synchronization mode is not supported with copies on "
            f"several devices; leave synchronization out for variable {name!r}"
        )


def require_mean_exists(variable: Variable) -> None:
    """Check that the mean of assignments has the variable's dtype.

    Raises:
        InvalidArgumentError: It has not. Spec: VAR-23.
    """
    fractional = variable.dtype.is_floating_point or variable.dtype.is_complex
    if variable.aggregation is VariableAggregation.MEAN and not fractional:
        raise InvalidArgumentError(
            f"Variable {variable.name!r} cannot have aggregation=MEAN and a "
            f"non-floating dtype, {variable.dtype}; use SUM, or a floating dtype"
        )


class MirroredStrategy(OneProcessStrategy):
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
