"""`Strategy`, the public face of all strategies; its earlier spellings; the default strategy."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch

from stratagem._core import contexts
from stratagem._core.contexts import (
    ImplicitScope,
    Scope,
    current_context,
    entered,
    exchange_run_options,
    require_cross_replica_or_default,
)
from stratagem._core.distributed_values import warn_of_replicas_without_rows
from stratagem._core.nests import leaves
from stratagem._core.options import InputContext, ReduceOp, RunOptions, old_spelling, reduce_op_from
from stratagem._core.reduction import Axis
from stratagem._input.options import InputOptions, InputReplicationMode
from stratagem._strategies.extended import StrategyExtended, require_function, require_options
from stratagem._strategies.strategy_methods import (
    CheckpointMethods,
    DatasetMethods,
    ProgressMethods,
)
from stratagem_proto.errors import ContextError, InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy
    from stratagem._input.iterator import InputIterator
    from stratagem._input.reader import NumpyDataset
    from stratagem_proto.v1.cluster_pb2 import ConfigProto


def require_described(
    strategy: AnyStrategy, cluster_spec: Any, task_type: str | None, task_id: int | None
) -> None:
    """Check that a description of a cluster is that of the strategy's own.

    Args:
        strategy: The strategy.
        cluster_spec: A cluster, or nothing.
        task_type: The job of this process, or None.
        task_id: Its task, or None.

    Raises:
        InvalidArgumentError: It says something else than the strategy's resolver, or the strategy
            has none.
    """
    given = {
        "cluster_spec": _as_dict(cluster_spec) or None,
        "task_type": task_type or None,
        "task_id": task_id if task_type else task_id or None,
    }
    known = _known(strategy.cluster_resolver)
    for name, value in given.items():
        if value is not None and value != known.get(name):
            raise InvalidArgumentError(
                f"`configure` got {name}={value!r}, but {type(strategy).__name__} was "
                f"made for {known.get(name)!r}, and keeps it; pass a ClusterResolver "
                "to the constructor of a strategy for several workers"
            )


def _known(resolver: Any) -> dict[str, Any]:
    if resolver is None:
        return {}
    return {
        "cluster_spec": _as_dict(resolver.cluster_spec()),
        "task_type": resolver.task_type,
        "task_id": resolver.task_id,
    }


def _as_dict(cluster_spec: Any) -> Any:
    if not cluster_spec:
        return None
    # Late: programs without a cluster need no protobuf.
    from stratagem._cluster.tasks import ClusterSpec

    return ClusterSpec(cluster_spec).as_dict()


class OldSpellings:
    """The part of `Strategy` that is there for programs of 2019 to 2021.

    Each method forwards to what its warning names.
    """

    _extended: StrategyExtended

    @old_spelling("experimental_local_results")
    def unwrap(self, value: Any) -> tuple[Any, ...]:
        """Spec: LOC-7."""
        return self._this().experimental_local_results(value)

    @old_spelling("run")
    def experimental_run_v2(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As `run`, but `args` may be any iterable. Spec: STR-21."""
        if isinstance(args, Iterable) and not isinstance(args, torch.Tensor):
            args = tuple(args)
        return self._this().run(fn, args, kwargs)

    @old_spelling("run, with the next element of an iterator as an argument,")
    def experimental_run(
        self, fn: Callable[..., Any], input_iterator: InputIterator | None = None
    ) -> Any:
        """Run `fn` once per replica, with the next input of an iterator.

        Args:
            fn: The replica function; the input is its only argument, however nested.
            input_iterator: Is asked for one input; without, `fn` has no argument.

        Raises:
            OutOfRangeError: The data have ended.
            InvalidTypeError: `input_iterator` has no `get_next()`.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: STR-22.
        """
        require_cross_replica_or_default(self._extended, "experimental_run")
        if input_iterator is not None and not hasattr(input_iterator, "get_next"):
            raise InvalidTypeError(
                "`experimental_run` takes an iterator with `get_next()`, such as "
                "make_dataset_iterator() returns, not "
                f"{type(input_iterator).__name__}; pass values by run(fn, (values,))"
            )
        with entered(self._this()):
            args = () if input_iterator is None else (input_iterator.get_next(),)
            return self._this().run(fn, args)

    @old_spelling("nothing, as there is nothing to initialize,")
    def experimental_initialize(self) -> list[Any]:
        """Return the operations to run in a graph: none. Spec: STR-7."""
        return []

    @old_spelling("nothing, as there is nothing to finalize,")
    def experimental_finalize(self) -> list[Any]:
        """Return the operations to run in a graph: none. Spec: STR-7."""
        return []

    @old_spelling("distribute_datasets_from_function")
    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        """Spec: STR-34."""
        return self._this().distribute_datasets_from_function(dataset_fn, options)

    @old_spelling("experimental_distribute_dataset")
    def make_dataset_iterator(self, dataset: Any) -> InputIterator:
        """Return an iterator over `dataset`, whose elements are global batches.

        Raises:
            InvalidArgumentError: The batches of a `DataLoader` cannot be divided evenly between the
                replicas of this process.
            InvalidTypeError: As for `experimental_distribute_dataset`.
            UnimplementedError: As there.

        Spec: STR-30, INP-3, INP-49b, DEF-7.
        """
        return self._dataset_iterator(dataset)

    def _dataset_iterator(self, dataset: Any) -> InputIterator:
        # Late, here and below: not every program has a strategy read its data.
        from stratagem._input.iterator import InputIterator
        from stratagem._input.pipeline import splitting_pipeline

        _require_divisible(dataset, self._extended._num_replicas_in_sync)
        pipeline = splitting_pipeline(dataset, self._extended._input_worker())
        return InputIterator(self._this(), pipeline)

    @old_spelling("distribute_datasets_from_function")
    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> InputIterator:
        """Return an iterator that deals what `input_fn` provides to the replicas.

        A last round that has not an element for each replica is dropped.

        Args:
            input_fn: Called now; returns a dataset, or a function that returns one element per call
                and ends by StopIteration or `OutOfRangeError`.
            replication_mode: PER_WORKER.

        Raises:
            InvalidArgumentError: `replication_mode` is another one, or `input_fn` returns something
                else.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: STR-31, INP-4, INP-30b, INP-49c, DEF-7.
        """
        require_function("make_input_fn_iterator", input_fn)
        require_cross_replica_or_default(self._extended, "make_input_fn_iterator")
        return self._input_fn_iterator(input_fn, replication_mode)

    def _input_fn_iterator(
        self, input_fn: Callable[[InputContext], Any], replication_mode: InputReplicationMode
    ) -> InputIterator:
        from stratagem._input.iterator import InputIterator
        from stratagem._input.pipeline import input_function_pipeline

        worker = self._extended._input_worker()
        with entered(self._this()):
            pipeline = input_function_pipeline(input_fn, worker, replication_mode)
        return InputIterator(self._this(), pipeline)

    @old_spelling("experimental_distribute_dataset, with a DataLoader over a TensorDataset,")
    def experimental_make_numpy_dataset(
        self, numpy_input: Any, session: object = None
    ) -> NumpyDataset:
        """Spec: STR-32."""
        return self._extended.experimental_make_numpy_dataset(numpy_input, session)

    @old_spelling("update_config_proto, and a cluster resolver,")
    def configure(
        self,
        session_config: ConfigProto | None = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Change a session's configuration to what this strategy needs.

        Args:
            session_config: The configuration; changed in place.
            cluster_spec: None, or the cluster that the strategy has been made for.
            task_type: None, or the job of this process there.
            task_id: None, or its task.

        Raises:
            InvalidArgumentError: The strategy was made for another cluster or task; its constructor
                takes a `ClusterResolver`.

        Spec: CFG-1.
        """
        require_described(self._this(), cluster_spec, task_type, task_id)
        if session_config is not None:
            updated = self._this().update_config_proto(session_config)
            session_config.CopyFrom(updated)

    def _this(self) -> AnyStrategy:
        return cast("AnyStrategy", self)


def _require_divisible(dataset: Any, replicas: int) -> None:
    size = getattr(dataset, "batch_size", None)
    if isinstance(size, int) and size % replicas:
        raise InvalidArgumentError(
            f"Batches of {size} cannot be divided evenly between {replicas} replicas; "
            "choose a multiple, or give each replica its own batches by "
            "make_input_fn_iterator()"
        )


def _moved(old: str, new: str) -> property:
    """Return a property that gives the method or property `new` of `extended`."""

    def read(strategy: AnyStrategy) -> Any:
        return getattr(strategy._extended, new)

    read.__name__ = read.__qualname__ = old
    read.__doc__ = f"`extended.{new}`."
    return property(old_spelling(f"extended.{new}")(read))


class MovedToExtended:
    """The part of `Strategy` that is part of `StrategyExtended` now. Spec: NAM-2."""

    batch_reduce: property = _moved("batch_reduce", "batch_reduce_to")
    between_graph: property = _moved("between_graph", "experimental_between_graph")
    broadcast: property = _moved("broadcast", "broadcast_to")
    call_for_each_replica: property = _moved("call_for_each_replica", "call_for_each_replica")
    colocate_vars_with: property = _moved("colocate_vars_with", "colocate_vars_with")
    non_slot_devices: property = _moved("non_slot_devices", "non_slot_devices")
    parameter_devices: property = _moved("parameter_devices", "parameter_devices")
    read_var: property = _moved("read_var", "read_var")
    require_static_shapes: property = _moved(
        "require_static_shapes", "experimental_require_static_shapes"
    )
    run_steps_on_dataset: property = _moved(
        "run_steps_on_dataset", "experimental_run_steps_on_iterator"
    )
    should_checkpoint: property = _moved("should_checkpoint", "should_checkpoint")
    should_init: property = _moved("should_init", "experimental_should_init")
    should_save_summary: property = _moved("should_save_summary", "should_save_summary")
    update: property = _moved("update", "update")
    update_non_slot: property = _moved("update_non_slot", "update_non_slot")
    value_container: property = _moved("value_container", "value_container")
    variable_created_in_scope: property = _moved(
        "variable_created_in_scope", "variable_created_in_scope"
    )
    worker_devices: property = _moved("worker_devices", "worker_devices")


# Functions that a call only begins.
_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


_Self = TypeVar("_Self", bound="Strategy")


class Strategy(CheckpointMethods, DatasetMethods, ProgressMethods, OldSpellings, MovedToExtended):
    """A way to distribute training over devices and machines.

    Everything that differs between strategies is in its `StrategyExtended`.

    Args:
        extended: That object.

    Spec: STR-1 to STR-24.
    """

    _extended: StrategyExtended

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended = extended

    @property
    def extended(self) -> StrategyExtended:
        """Methods for libraries and for authors of strategies. Spec: STR-2."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas whose gradients are combined. Spec: STR-3."""
        return self._extended._num_replicas_in_sync

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that describes the cluster, None without. Spec: STR-4."""
        return getattr(self._extended, "_cluster_resolver", None)

    def scope(self: _Self, name: str | None = None) -> Scope[_Self]:
        """Return a context manager that makes this strategy the current one.

        Variables and modules created inside belong to the strategy.

        Args:
            name: Prefix for the names of the modules' parameters.

        Raises:
            ContextError: On entering: a replica is running, or another strategy is in charge. Spec:
                CTX-10 to CTX-13.
        """
        return Scope(self, name)

    def _implicit_scope(self) -> AbstractContextManager[object]:
        """Return the scope that the strategy's own methods enter."""
        return ImplicitScope(self)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Call `fn` once per replica and merge the results.

        Args:
            fn: The replica function.
            args: Positional arguments, a list or a tuple. Of distributed values in it, however
                deep, each replica gets its component.
            kwargs: Keyword arguments, likewise.
            options: How to run.

        Returns:
            The nest that `fn` returned; leaves that are not the same object on all replicas become
            `PerReplica`. Small integers of Python are one object each: return counts as tensors.

        Raises:
            InvalidArgumentError: `args` is neither list nor tuple, or the replicas return different
                structures.
            InvalidTypeError: `options` are no `RunOptions`, or `fn` is a generator or a coroutine.
            ContextError: A replica is running, another strategy is in charge, or the replicas make
                different numbers of merge calls.

        Spec: STR-20, RUN-1 to RUN-7.
        """
        if not isinstance(args, list | tuple):
            raise InvalidArgumentError(
                "positional args must be a list or tuple, got "
                f"{type(args).__name__}; write args=(x,) for a single argument"
            )
        if getattr(getattr(fn, "__code__", None), "co_flags", 0) & _RUNS_LATER:
            raise InvalidTypeError(
                f"{fn.__name__} is a generator or coroutine function, whose body no replica would "
                "run; pass a plain function"
            )
        if options is not None:
            require_options(options)
        outer = exchange_run_options(options)
        try:
            return self._extended.call_for_each_replica(fn, args, kwargs)
        finally:
            exchange_run_options(outer)

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Axis | None = None) -> Any:
        """Reduce a nest of values over replicas, to the current device.

        Without an axis, it warns if a replica had no data when it returned its part.

        Args:
            reduce_op: The reduction.
            value: Typically what `run` returned.
            axis: Dimension, or several, to reduce as well; a mean then weights every element alike,
                however many a replica has.

        Returns:
            The nest with one tensor per leaf.

        Raises:
            InvalidArgumentError: `reduce_op` is no reduction, a plain value is to be summed, or
                shapes differ between replicas.
            InvalidTypeError: With an axis: `reduce_op` is no reduction, or `axis` is neither an
                integer nor several.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: RED-1 to RED-27.
        """
        require_cross_replica_or_default(self._extended, "reduce")
        if axis is None:
            warn_of_replicas_without_rows(value)
            return self._extended._reduce(reduce_op_from(reduce_op), value)
        if not isinstance(reduce_op, ReduceOp | str):
            raise InvalidTypeError(
                f"Expected `reduce_op` to be a ReduceOp or its name, not {type(reduce_op).__name__}"
            )
        return self._extended._reduce_axes(reduce_op_from(reduce_op), value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the values of all replicas, on the current device.

        Args:
            value: Nest of distributed tensors; plain ones are returned as they are.
            axis: Dimension along which to join; sizes may differ there only.

        Raises:
            InvalidArgumentError: The tensors do not fit together.
            UnimplementedError: A leaf is an `IndexedSlices`.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: GAT-1 to GAT-8.
        """
        context = current_context()
        if context is not None and context.replica_context is not None:
            raise ContextError(
                "`strategy.gather` only works in cross-replica context; in a replica "
                "use get_replica_context().all_gather()"
            )
        require_cross_replica_or_default(self._extended, "gather")
        return self._extended._gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the components of `value` that belong to this process's replicas.

        Spec: LOC-1 to LOC-8.
        """
        return self._extended._local_results(value)

    def group(self, value: Any, name: str | None = None) -> Any:
        """Return a single local component as it is, and None for several.

        What `value` stands for has been carried out already.

        Args:
            value: Anything that `run` returns.
            name: Name of the group; with one, nothing is returned.

        Spec: GRP-1.
        """
        parts = leaves(self.experimental_local_results(value))
        return parts[0] if len(parts) == 1 and name is None else None

    def update_config_proto(self, config_proto: ConfigProto) -> ConfigProto:
        """Return a copy of a session's configuration as this strategy needs it.

        Args:
            config_proto: The configuration; it stays as it is.

        Raises:
            InvalidTypeError: `config_proto` is something else.

        Spec: CFG-2, MS-14.
        """
        # Late: nobody who calls this has not loaded it, and others need no protobuf.
        from stratagem_proto.v1.cluster_pb2 import ConfigProto

        if not isinstance(config_proto, ConfigProto):
            raise InvalidTypeError(
                "`update_config_proto` takes a stratagem.ConfigProto, not "
                f"{type(config_proto).__name__}"
            )
        updated = ConfigProto()
        updated.CopyFrom(config_proto)
        self._extended._update_config_proto(updated)
        return updated

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        """Return a strategy of its own, distinct from this one. Spec: CTX-41."""
        result = type(self).__new__(type(self))
        memo[id(self)] = result
        vars(result).update(copy.deepcopy(vars(self), memo))
        result._extended._container = weakref.ref(result)
        return result

    def __copy__(self) -> NoReturn:
        """Refuse: `extended` belongs to one strategy. Spec: CTX-37."""
        raise ContextError("Must only deepcopy a Strategy; use copy.deepcopy")

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            f"a {type(self).__name__} cannot be pickled, since it belongs to this process; make "
            "one in each process, from its cluster resolver"
        )


# The stack of contexts is below strategies and knows no more than that they are there.
get_strategy: Callable[[], Strategy] = cast("Callable[[], Strategy]", contexts.get_strategy)


def default_strategy() -> Strategy:
    """Return the strategy that is in charge outside of every scope."""
    return cast("Strategy", contexts.DEFAULT.strategy)
