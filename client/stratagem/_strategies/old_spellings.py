"""What methods of strategies were called in earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from stratagem._core.contexts import entered, require_cross_replica_or_default
from stratagem._core.options import InputContext, old_spelling
from stratagem._input.options import InputOptions, InputReplicationMode
from stratagem._strategies.described_cluster import require_described
from stratagem._strategies.extended_arguments import require_function
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy
    from stratagem._input.iterator import InputIterator
    from stratagem._input.numpy_dataset import NumpyDataset
    from stratagem._strategies.extended import StrategyExtended
    from stratagem_proto.v1.cluster_pb2 import ConfigProto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


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
        from stratagem._input.input_function import input_function_pipeline
        from stratagem._input.iterator import InputIterator

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
