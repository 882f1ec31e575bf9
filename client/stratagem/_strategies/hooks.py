"""What a concrete strategy provides, and what such strategies are made of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core import device_names
from stratagem._core.assignment import Write
from stratagem._core.distributed_values import (
    DistributedValues,
    per_replica_values,
    place,
    select_component,
)
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._core.nests import leaves, map_leaves, opened
from stratagem._core.options import InputContext, ReduceOp
from stratagem._core.reduction import Axis, combine, gather, reduce_axes, reduce_nest
from stratagem._core.replica_threads import run_replicas
from stratagem._core.update_functions import run_update
from stratagem._core.variables import Variable
from stratagem._strategies.multi_step import GivesInputs, MultiStepContext, run_steps
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._checkpoints.restoring import RestoreStatus
    from stratagem._core.options import CommunicationOptions, ValueContext
    from stratagem._core.protocols import AnyHosting, AnyStrategy
    from stratagem._core.scalars import Scalars
    from stratagem._core.variable_creation import NextCreator
    from stratagem._input.iterator import DistributedIterator
    from stratagem._input.options import AutoShardPolicy, InputOptions
    from stratagem._input.sharding import InputWorker
    from stratagem_proto.input_order import BatchRead
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


class StrategyPrimitives:
    """The operations that hooks of a strategy are usually one call of.

    They are for authors of strategies, to be called by the hooks of `StrategyExtended`, not
    overridden.
    """

    _container: weakref.ref[AnyStrategy]

    if TYPE_CHECKING:

        @property
        def _num_local_replicas(self) -> int: ...

        def _after_replicas(self) -> None: ...

    def _container_strategy(self) -> AnyStrategy:
        strategy = self._container()
        if strategy is None:
            raise InvalidArgumentError(
                f"The strategy of this {type(self).__name__} has been collected; keep "
                "a reference to the strategy as long as you use `extended`"
            )
        return strategy

    def _run_replicas(
        self,
        devices: Sequence[str],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call `fn` once per device, for `_call_for_each_replica`.

        Of distributed values each replica gets its component; what the replicas return is merged,
        and they may make merge calls. Spec: RUN-1 to RUN-7.
        """
        try:
            return run_replicas(self._container_strategy(), devices, fn, args, kwargs)
        finally:
            self._after_replicas()

    def _share(self, variable: Variable) -> Variable:
        """Return what all replicas share of a variable, for `_create_variable`.

        What several replicas write is reduced by `_reduce_to`, as the variable's aggregation says,
        and written once. Spec: VAR-4.
        """
        return AggregatingVariable(self._container_strategy(), variable)

    def _reduce_nest(self, reduce_op: ReduceOp, value: Any, destinations: Any) -> Any:
        """Reduce a nest in replica order, for `_reduce_to`. Spec: EXT-1."""
        return reduce_nest(reduce_op, value, destinations, self._num_local_replicas)

    def _place_value(self, value: Any, destinations: Any) -> Any:
        """Copy tensors of a nest to the destinations, for `_broadcast_to`.

        Several destinations, as of distributed values, give `Mirrored`. Other leaves stay as they
        are. Spec: EXT-1, EXT-3.
        """
        return place(value, destinations)

    def _run_update(
        self,
        device: str,
        call: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Call a function on the one copy of a variable, for `_update`.

        Args:
            device: Where the variable is.
            call: The function, with the variable already bound to it.
            args: Positional arguments; mirrored ones are unwrapped.
            kwargs: Keyword arguments, likewise.
            group: Whether to return the result as it is; otherwise each leaf becomes a tuple of
                one.

        Raises:
            InvalidArgumentError: An argument differs between replicas. Spec: EXT-4.
        """
        strategy = self._container_strategy()
        return run_update(strategy, device, call, args, kwargs, group)

    def _run_steps(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: GivesInputs,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        """Loop, for `_experimental_run_steps_on_iterator`. Spec: MSC-2 to MSC-12."""
        strategy = self._container_strategy()
        return run_steps(strategy, fn, iterator, iterations, initial_loop_values)


class StrategyHooks(StrategyPrimitives):
    """The protected half of `StrategyExtended`, which subclasses override.

    A training step meets them in this order:

    - `_scope_resources(name)`: opened with each outermost `scope()` of the user.
    - `_create_variable(next_creator, **kwargs)`: for each `Variable(...)`.
    - `_input_context()`: when a dataset is distributed.
    - `_before_run()`, which calls `_before_replicas()`, then
      `_call_for_each_replica(fn, args, kwargs)`: for each `run`.
    - `_reduce_to`, `_batch_reduce_to`, `_gather`: values of all replicas
      become one. `_broadcast_to`: one value goes to several devices.
    - `_update`, `_update_non_slot`: functions run where variables are.

    All are called in the strategy's cross-replica context, but for the reducing ones, which may
    also be called in the default context.
    """

    _default_device: str | None = None
    """The current device inside of the scope; None leaves it alone."""

    _hosting: AnyHosting | None = None
    """What makes variables of modules built in the scope; None if nothing does."""

    _scalars: Scalars
    """What the program has logged."""

    @property
    def worker_devices(self) -> Sequence[str]:
        """Full names of the devices that run replicas. Spec: EXT-11."""
        raise self._missing("worker_devices")

    @property
    def worker_devices_by_replica(self) -> list[list[str]]:
        """The devices of each replica of this process, a list of one for each. Spec: EXT-20."""
        return [[device] for device in self.worker_devices[: self._num_local_replicas]]

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
        return tuple(map_leaves(partial(select_component, index), value) for index in local)

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

    # The task.

    @property
    def parameter_devices(self) -> Sequence[str]:
        """Names of the devices that variables are placed on. Spec: EXT-12."""
        raise self._missing("parameter_devices")

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether replicas need inputs of one shape. Spec: EXT-13."""
        return False

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each worker runs the user's program. Spec: EXT-16."""
        raise self._missing("experimental_between_graph")

    @property
    def experimental_should_init(self) -> bool:
        """Whether this task initialises variables. Spec: EXT-17."""
        raise self._missing("experimental_should_init")

    @property
    def should_checkpoint(self) -> bool:
        """Whether this task writes checkpoints. Spec: EXT-17."""
        raise self._missing("should_checkpoint")

    @property
    def should_save_summary(self) -> bool:
        """Whether this task writes summaries. Spec: EXT-17."""
        raise self._missing("should_save_summary")

    def _scope_resources(self, name: str | None) -> AbstractContextManager[object]:
        """Return what has to be open while the user's `scope(name)` is.

        It is entered last and left first. The scopes that methods enter by themselves do without.
        """
        return nullcontext() if self._hosting is None else self._hosting.watching(name)

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        """Create a variable of this strategy.

        Args:
            next_creator: Makes a plain variable; takes `device` as well, or `make`, a function that
                makes another one in its place.
            kwargs: The arguments of `Variable` with traits filled in and a unique name; in
                `colocate_vars_with` also `colocate_with`.
        """
        raise self._missing("_create_variable")

    def _values_of(self, variables: Sequence[Variable]) -> list[torch.Tensor]:
        """Return what several variables return as their `value()`."""
        return [variable.value() for variable in variables]

    def _write_each(self, write: Write, values: Mapping[Variable, Any]) -> None:
        """Write several variables, each its value or `IndexedSlices`."""
        for variable, value in values.items():
            variable._write(write, value)

    def _rows_of(
        self, variables: Sequence[Variable], rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return some rows of each variable, by int64 tensors of shape [n]."""
        values = self._values_of(variables)
        pairs = zip(values, rows, strict=True)
        return [value[one.to(value.device)] for value, one in pairs]

    def _update_config_proto(self, config: ConfigProto) -> None:
        """Change a session's configuration, in place, to what is needed."""

    def _validate_colocate_with(self, colocate_with_variable: Any) -> None:
        """Check what is passed to `colocate_vars_with`. Spec: EXT-10."""
        owner = getattr(colocate_with_variable, "distribute_strategy", None)
        if owner is not self._container_strategy():
            raise InvalidArgumentError(
                "`colocate_vars_with` must only be passed a variable created in this "
                f"strategy's scope, not {colocate_with_variable!r}"
            )

    def _before_replicas(self) -> None:
        """Prepare for replicas to run, for instance fetch fresh parameters."""
        if self._hosting is not None:
            self._hosting.before_replicas()

    def _after_replicas(self) -> None:
        """Note what replicas have left behind, whether or not they raised."""
        if self._hosting is not None:
            self._hosting.after_replicas()

    def _before_run(self) -> None:
        """Prepare for a `run`; usually as for any other use of fresh values."""
        self._before_replicas()

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call `fn` once per replica; usually by `_run_replicas`."""
        raise self._missing("_call_for_each_replica")

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        """Call a step for several inputs; usually by `_run_steps`."""
        raise self._missing("_experimental_run_steps_on_iterator")

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Run `fn` where `var` is; usually by `_run_update`."""
        raise self._missing("_update")

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: bool,
    ) -> Any:
        """Run `fn` where non-slot variables are; usually by `_run_update`."""
        raise self._missing("_update_non_slot")

    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        """Return where to put variables that belong to no single other one.

        Pass it to `colocate_vars_with` and `update_non_slot`.

        Args:
            var_list: The variables being optimized.

        Spec: EXT-7.
        """
        raise self._missing("non_slot_devices")

    def _state_dict(self) -> dict[str, torch.Tensor]:
        """Return snapshots of everything that is to be in a checkpoint, by name."""
        if self._hosting is None:
            raise self._no_checkpoints()
        return self._hosting.state_dict()

    def _load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool) -> RestoreStatus:
        """Replace values by those of a checkpoint, also of what is made later."""
        if self._hosting is None:
            raise self._no_checkpoints()
        status: RestoreStatus = self._hosting.load_state_dict(state, strict)
        return status

    def _one_moment(self) -> AbstractContextManager[None]:
        """Return a context in which all values are those of one moment, whoever else trains."""
        return nullcontext()

    def _no_checkpoints(self) -> UnimplementedError:
        return UnimplementedError(
            f"{type(self._container_strategy()).__name__} has no checkpoints of its "
            "own here: strategies have them whose variables are all in this process. "
            "Keep module.state_dict(), DistributedOptimizer.state_dict() and "
            "Variable.read_value() instead"
        )

    # Values of all replicas.

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        """Reduce a nest over replicas; usually by `_reduce_nest`."""
        raise self._missing("_reduce_to")

    def _batch_reduce_to(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        return [
            self._reduce_to(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Copy a tensor to the destinations; usually by `_place_value`."""
        raise self._missing("_broadcast_to")

    def _reduce(self, reduce_op: ReduceOp, value: Any) -> Any:
        """Reduce to the current device, for `Strategy.reduce` without an axis."""
        reduced = self._reduce_to(reduce_op, value, self._current_device(), None)
        return self._local_results(reduced)[0]

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        """Reduce over `axis` and replicas, for `Strategy.reduce` with an axis."""
        reduced = reduce_axes(reduce_op, value, axis, self._num_local_replicas)
        return self._place_value(reduced, self._current_device())

    def _gather(self, value: Any, axis: int) -> Any:
        """Concatenate the components of each leaf on the current device."""
        joined = iter(self._gathered(leaves(value), axis))
        gathered = map_leaves(lambda _: next(joined), value)
        return self._place_value(gathered, self._current_device())

    def _gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        """Concatenate the components of each value, where the first of them is."""
        return [gather(value, axis) for value in values]

    def _lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        """Return where in concatenations the parts of this process begin.

        Args:
            lengths: Of those parts.
        """
        return [0] * len(lengths)

    def _note_write(self, variable: Variable) -> None:
        """Take note that a mirrored variable was written, as it is, in cross-replica context."""

    def _combine_copies(self, reduce_op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        """Reduce the copies of a variable, for a read."""
        total = combine(reduce_op, copies)
        assert isinstance(total, torch.Tensor)
        return total

    # Input.

    def _input_context(self) -> InputContext:
        """Return which share of the data this process reads; decided only here."""
        return InputContext(num_replicas_in_sync=self._num_replicas_in_sync)

    def _input_worker(self) -> InputWorker:
        # Late, here and below: not every program has a strategy read its data.
        from stratagem._input.sharding import InputWorker

        local = self.worker_devices[: self._num_local_replicas]
        devices = tuple(device_names.torch_device(device) for device in local)
        return InputWorker(self._input_context(), devices)

    def _input_left(self, here: bool, read: BatchRead | None) -> bool:
        """Return whether any worker in sync has input for one more step.

        Each asks for every step, in the same order. One without input then takes part with tensors
        of 0 rows. Spec: INP-27.

        Args:
            here: Whether this one has.
            read: What others are to compare with what they have read, if anything.

        Raises:
            InvalidArgumentError: Workers that divide one dataset have read it in different orders.
        """
        return here

    def _distribute_dataset(
        self, dataset: Any, options: InputOptions | None, auto_shard_policy: AutoShardPolicy | int
    ) -> Any:
        from stratagem._input.iterator import DistributedDataset
        from stratagem._input.pipeline import splitting_pipeline
        from stratagem._input.reader import NumpyDataset

        if isinstance(dataset, NumpyDataset):
            dataset = dataset.batched(self._num_replicas_in_sync)
        worker = self._input_worker()
        pipeline = splitting_pipeline(dataset, worker, options, auto_shard_policy)
        return DistributedDataset(self._container_strategy(), pipeline)

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
    ) -> Any:
        from stratagem._input.iterator import DistributedDataset
        from stratagem._input.pipeline import function_pipeline

        pipeline = function_pipeline(dataset_fn, self._input_worker(), options)
        return DistributedDataset(self._container_strategy(), pipeline)

    def _lookahead(self, data: Iterable[Any], rows: Callable[[Any], Any]) -> Iterable[Any]:
        """Go over data; where rows are elsewhere, ask for those that the next batches need."""
        return data

    def _distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        return per_replica_values(
            value_fn, self._first_replica_id, self._num_local_replicas, self._num_replicas_in_sync
        )
