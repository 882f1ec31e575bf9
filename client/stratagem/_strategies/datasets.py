"""The methods of strategies that bring data to the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import deprecated

from stratagem._contexts.scope import entered
from stratagem._input.input_function import input_function_pipeline
from stratagem._input.iterator import InputIterator
from stratagem._input.options import (
    AutoShardPolicy,
    InputOptions,
    InputReplicationMode,
)
from stratagem._input.pipeline import splitting_pipeline
from stratagem._options import InputContext, ValueContext

if TYPE_CHECKING:
    from stratagem._input.numpy_dataset import NumpyDataset
    from stratagem._strategies.extended import StrategyExtended
    from stratagem._strategies.strategy import Strategy


class DatasetMethods:
    """The part of `Strategy` that is about input. Spec: STR-22, STR-30 to STR-36."""

    _extended: StrategyExtended

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        auto_shard_policy: AutoShardPolicy | int = AutoShardPolicy.AUTO,
    ) -> Any:
        """Split each element of a dataset between the replicas.

        Each element is a global batch: of B rows and N replicas the first gets the
        first ceil(B / N), and so on. The last replicas may get tensors with 0 rows.

        Args:
            dataset: A `DataLoader`, an iterable or map-style `Dataset`, a list, or a
                generator function; its elements are nests of tensors, arrays or
                numbers. With one replica they need not be batches.
            options: How the data reach the replicas. Without, they are read ahead by
                one step where replicas are on GPUs.
            auto_shard_policy: What each of several workers reads.

        Returns:
            A `DistributedDataset`; under the default strategy `dataset` itself.

        Raises:
            InvalidTypeError: `dataset` is none, or can be read only once.
            InvalidArgumentError: An option or the policy has no meaning.
            UnimplementedError: Options ask for one dataset per replica, or several
                workers are to share the dataset.

        Spec: STR-33, INP-1, INP-10 to INP-22, INP-27, INP-34.
        """
        return self._extended._distribute_dataset(dataset, options, auto_shard_policy)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[InputContext], Any],
        options: InputOptions | None = None,
    ) -> Any:
        """Deal the elements of the dataset that a function returns to the replicas.

        Each element is the batch of one replica. Replicas without data in the last
        step get tensors with 0 rows.

        Args:
            dataset_fn: Called now, once for each worker, or for each replica if
                options say so. It returns what `experimental_distribute_dataset`
                takes.
            options: How the data reach the replicas.

        Returns:
            A `DistributedDataset`; under the default strategy what `dataset_fn`
            returned.

        Raises:
            InvalidTypeError: `dataset_fn` returns no dataset.
            InvalidArgumentError: Options contradict each other.

        Spec: STR-35, INP-2, INP-28, INP-31, INP-32, INP-35, INP-49d, INP-49e.
        """
        return self._extended._distribute_datasets_from_function(dataset_fn, options)

    @deprecated("Use distribute_datasets_from_function instead")
    def experimental_distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[InputContext], Any],
        options: InputOptions | None = None,
    ) -> Any:
        """Forward to `distribute_datasets_from_function`. Spec: STR-34."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Make a value for each replica of this process.

        Args:
            value_fn: Called for each, in order; returns a nest.

        Returns:
            The nest with `PerReplica` as leaves, which are not converted; under the
            default strategy what `value_fn` returned.

        Raises:
            InvalidArgumentError: The nests differ in structure.

        Spec: STR-36, INP-5, INP-51, INP-52, VAL-10.
        """
        return self._extended._distribute_values_from_function(value_fn)

    @deprecated("Use experimental_distribute_dataset instead")
    def make_dataset_iterator(self, dataset: Any) -> InputIterator:
        """Return an iterator over `dataset`, whose elements are global batches.

        Raises:
            InvalidTypeError: As for `experimental_distribute_dataset`.
            UnimplementedError: As there.

        Spec: STR-30, INP-3, INP-49b, DEF-7.
        """
        pipeline = splitting_pipeline(dataset, self._extended._input_worker())
        return InputIterator(cast("Strategy", self), pipeline)

    @deprecated("Use distribute_datasets_from_function instead")
    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> InputIterator:
        """Return an iterator that deals what `input_fn` provides to the replicas.

        A last round that has not an element for each replica is dropped.

        Args:
            input_fn: Called now; returns a dataset, or a function that returns one
                element per call and ends by StopIteration or `OutOfRangeError`.
            replication_mode: PER_WORKER.

        Raises:
            InvalidArgumentError: `replication_mode` is another one, or `input_fn`
                returns something else.

        Spec: STR-31, INP-4, INP-30b, INP-49c, DEF-7.
        """
        worker = self._extended._input_worker()
        pipeline = input_function_pipeline(input_fn, worker, replication_mode)
        return InputIterator(cast("Strategy", self), pipeline)

    @deprecated(
        "Use experimental_distribute_dataset with a DataLoader over a TensorDataset "
        "instead"
    )
    def experimental_make_numpy_dataset(
        self, numpy_input: Any, session: object = None
    ) -> NumpyDataset:
        """Forward to `extended.experimental_make_numpy_dataset`. Spec: STR-32."""
        return self._extended.experimental_make_numpy_dataset(numpy_input, session)

    @deprecated("Use run, with the next element of an iterator as an argument, instead")
    def experimental_run(
        self,
        fn: Callable[..., Any],
        input_iterator: InputIterator | None = None,
    ) -> Any:
        """Run `fn` once per replica, with the next input of an iterator.

        Args:
            fn: The replica function; the input is its only argument, however nested.
            input_iterator: Is asked for one input; without, `fn` has no argument.

        Raises:
            OutOfRangeError: The data have ended.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: STR-22.
        """
        strategy = cast("Strategy", self)
        with entered(strategy):
            args = () if input_iterator is None else (input_iterator.get_next(),)
            return strategy.run(fn, args)
