"""What strategies that keep a copy of each variable with each replica share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.device_names import canonicalize
from stratagem._core.distributed_variables import (
    CopiedVariable,
    MirroredVariable,
    copy_name,
)
from stratagem._core.options import (
    CommunicationOptions,
    InputContext,
    ReduceOp,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem._core.reduction import Axis
from stratagem._core.update_functions import run_updates
from stratagem._core.variable_creation import NextCreator
from stratagem._core.variables import LocalVariable, Variable
from stratagem._hosting.other_steps import workers
from stratagem._local.copies import CopiesHosting
from stratagem._local.replica_group import ReplicaGroup
from stratagem._strategies.extended import StrategyExtended
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker
    from stratagem.cluster_resolver import ClusterResolver
    from stratagem_proto.input_order import BatchRead


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
