"""The methods of strategies that bring data to the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from stratagem._core.contexts import require_cross_replica_or_default
from stratagem._core.options import InputContext, ValueContext
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._strategies.extended_arguments import require_function
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyExtended
    from stratagem._input.lookahead import Lookups
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

    def lookahead(self, data: Iterable[Any], rows: Lookups, batches: int = 1) -> Iterable[Any]:
        """Go over data while servers are asked for the rows that the next batches look up.

            dataset = strategy.experimental_distribute_dataset(loader)
            for batch in strategy.lookahead(dataset, lambda batch: [(model.users, batch["user"])]):
                strategy.run(step, args=(batch,))

        A lookup in a table on parameter servers takes a round trip to them. This asks for the rows
        of the next batch while the step of the present one computes; a run with gradients finds the
        rows of its batch here. Rows that `rows` leaves out are pulled when they are looked up.

        With "async" consistency a step has each row as of the moment when its batch was read, with
        all steps that this worker has taken since, but without those that others have taken since.
        With "bounded" and "sync" nothing is read ahead, and a run begins by pulling all rows of its
        batch at once, so that its values are those of a loop without lookahead. Elsewhere than on
        parameter servers, this goes over the data and nothing else.

        Args:
            data: A distributed dataset, a loader, or an iterator. The position of an iterator over
                a distributed dataset counts the batches that were given out; of any other iterator,
                what was read ahead is given out by the next iteration over what this returns.
            rows: Called for what each replica gets of a batch. Returns what the step looks up in
                it, as `stratagem.nn.prefetch` takes that: pairs of an embedding, or its weight, and
                a tensor of rows or keys. What is no table on servers is left out.
            batches: How many batches are read before their turn, at least 1.

        Returns:
            An iterable over the batches; each iteration is a pass over `data`. It has the length
            that the data have. An error of the data, or of `rows`, comes with the batch that it
            belongs to.

        Raises:
            InvalidTypeError: `data` cannot be iterated over, `rows` is no function, or `batches` no
                integer; or, with the batch, `rows` has returned something else.
            InvalidArgumentError: `batches` is less than 1, another lookahead reads the same
                iterator, or the data know their own position, which would count what was read
                ahead. Or, with the batch, it was written since it was read.
            RowIndexError: With the run: there is no such row.
            ContextError: A replica is running, or another strategy is in charge.
        """
        require_cross_replica_or_default(cast("AnyExtended", self._extended), "lookahead")
        if not isinstance(data, Iterable):
            raise InvalidTypeError(
                f"lookahead goes over data, and {data!r:.100} cannot be gone over; give it a "
                "dataset, a loader or an iterator"
            )
        require_function("lookahead", rows)
        if isinstance(batches, bool) or not isinstance(batches, int):
            raise InvalidTypeError(f"lookahead takes a number of batches, not {batches!r:.100}")
        if batches < 1:
            raise InvalidArgumentError(
                f"lookahead was called with batches={batches}; read 1 or more ahead, or go over "
                "the data without it"
            )
        return self._extended._lookahead(data, rows, batches)

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
