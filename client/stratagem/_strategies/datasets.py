"""The methods of strategies that bring data to the replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem._core.options import InputContext, ValueContext
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._strategies.extended_arguments import require_function
from stratagem_proto.errors import InvalidTypeError

if TYPE_CHECKING:
    from stratagem._strategies.hooks import StrategyHooks


class DatasetMethods:
    """The part of `Strategy` that is about input. Spec: STR-33, STR-35, STR-36."""

    _extended: StrategyHooks

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        auto_shard_policy: AutoShardPolicy | int = AutoShardPolicy.AUTO,
    ) -> Any:
        """Split each element of a dataset between the replicas.

        Each element is a global batch: of B rows and N replicas the first gets the first ceil(B /
        N), and so on. The last replicas may get tensors with 0 rows.

        Args:
            dataset: A `DataLoader`, an iterable or map-style `Dataset`, a list, or a generator
                function; its elements are nests of tensors, arrays or numbers. With one replica
                they need not be batches.
            options: How the data reach the replicas. Without, they are read ahead by one step where
                replicas are on GPUs.
            auto_shard_policy: What each of several workers reads. N is the number of replicas of
                all workers that step together.

        Returns:
            A `DistributedDataset`; under the default strategy `dataset` itself.

        Raises:
            InvalidTypeError: `dataset` is none, or can be read only once.
            InvalidArgumentError: An option or the policy has no meaning, there are fewer files than
                workers, or workers would shuffle differently.
            NotFoundError: Files are to be shared, but the dataset names none.
            UnimplementedError: Options ask for one dataset per replica, or workers that step alone
                are to share batches.

        Spec: STR-33, INP-1, INP-10 to INP-22, INP-27, INP-34.
        """
        return self._extended._distribute_dataset(dataset, options, auto_shard_policy)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        """Deal the elements of the dataset that a function returns to the replicas.

        Each element is the batch of one replica. Replicas without data in the last step get tensors
        with 0 rows.

        Args:
            dataset_fn: Called now, once for each worker, or for each replica if options say so. It
                returns what `experimental_distribute_dataset` takes.
            options: How the data reach the replicas.

        Returns:
            A `DistributedDataset`; under the default strategy what `dataset_fn` returned.

        Raises:
            InvalidTypeError: `dataset_fn` is no function, or returns no dataset.
            InvalidArgumentError: Options contradict each other.

        Spec: STR-35, INP-2, INP-28, INP-31, INP-32, INP-35, INP-49d, INP-49e.
        """
        if not callable(dataset_fn):
            raise InvalidTypeError(
                "dataset_fn must be a function of an InputContext that returns a "
                f"dataset, not {type(dataset_fn).__name__}; a dataset of global "
                "batches is for experimental_distribute_dataset"
            )
        return self._extended._distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Make a value for each replica of this process.

        Args:
            value_fn: Called for each, in order; returns a nest.

        Returns:
            The nest with `PerReplica` as leaves, which are not converted; under the default
            strategy what `value_fn` returned.

        Raises:
            InvalidArgumentError: The nests differ in structure.
            InvalidTypeError: `value_fn` is no function.

        Spec: STR-36, INP-5, INP-51, INP-52, VAL-10.
        """
        require_function("experimental_distribute_values_from_function", value_fn)
        return self._extended._distribute_values_from_function(value_fn)
