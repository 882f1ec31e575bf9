"""Values of towers, and loops of steps over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from stratagem._core import device_names
from stratagem._core.distributed_values import (
    DistributedValues,
    PerReplica,
    components,
    select_replica,
    select_replica_mirrored,
)
from stratagem._core.options import InputContext, ReduceOp, VariableAggregation, old_spelling
from stratagem._core.reduction import combine
from stratagem._core.replica_context import get_replica_context
from stratagem._input.iterator import InputIterator
from stratagem._input.options import InputReplicationMode
from stratagem._input.pipeline import dataset_of, input_function_pipeline
from stratagem._input.reader import Reader
from stratagem._strategies import multi_step
from stratagem._strategies.extended import require_function
from stratagem._strategies.strategy import Strategy, get_strategy
from stratagem_proto.errors import InvalidArgumentError


class MapOutput:
    """What `DistributionStrategy.map` returned for the elements of one device.

    Args:
        outputs: One for each element.

    Spec: OD-5, MS-9.
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        self._outputs = list(outputs)

    @old_spelling("a list")
    def get(self) -> list[Any]:
        """Return the outputs, in the order of the elements."""
        return self._outputs


def mapped(
    devices: Sequence[str],
    map_over: Iterable[Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call `fn` with each element, on one device after the other.

    Returns a `MapOutput`; with several devices a `PerReplica` of them.
    """
    outputs: list[list[Any]] = [[] for _ in devices]
    for number, element in enumerate(map_over):
        index = number % len(devices)
        mine = select_replica_mirrored(index, (tuple(args), dict(kwargs)))
        with device_names.device(devices[index]):
            outputs[index].append(fn(element, *mine[0], **mine[1]))
    results = [MapOutput(each) for each in outputs]
    return results[0] if len(results) == 1 else PerReplica(results)


def with_all_outputs(value: Any) -> Any:
    """Return `value`, of a map's result the outputs of all elements, if there are any."""
    parts = value.values if isinstance(value, PerReplica) else (value,)
    if not any(isinstance(part, MapOutput) for part in parts):
        return value
    outputs = [output for part in parts for output in part._outputs]
    if not outputs:
        raise InvalidArgumentError("There is nothing to reduce: `map` was given no elements")
    return PerReplica(outputs)


def reduced(
    strategy: Strategy, aggregation: VariableAggregation, value: Any, destinations: Any
) -> Any:
    """Reduce a value of towers, or the result of a map, to destinations.

    These are as for `extended.reduce_to`, or a list of devices.

    Raises:
        InvalidArgumentError: `aggregation` is another one, or a plain value other than 0 is to be
            summed over several towers.

    Spec: TWR-10, MS-11, OD-5.
    """
    outputs = with_all_outputs(value)
    _require_reduction(aggregation, mapped=outputs is not value)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        parts = components(value)
        return value if parts is None else spread(strategy, parts[0], destinations)
    if isinstance(value, int | float) and value == 0:
        return value
    op = ReduceOp.from_variable_aggregation(aggregation)
    if outputs is not value:
        return spread(strategy, combine(op, outputs.values), destinations)
    several = isinstance(destinations, list | tuple)
    total = strategy.extended.reduce_to(op, value, destinations[0] if several else destinations)
    return spread(strategy, total, destinations) if several else total


def spread(strategy: Strategy, tensor: Any, destinations: Any) -> Any:
    """Copy a tensor to the destinations. Spec: TWR-12."""
    return strategy.extended.broadcast_to(tensor, _as_one(destinations))


def placed(strategy: Strategy, tensor: Any, destinations: Any) -> Any:
    """Copy a tensor to devices, which need not be the strategy's."""
    return strategy.extended._place_value(tensor, _as_one(destinations))


def _as_one(destinations: Any) -> Any:
    several = isinstance(destinations, list | tuple)
    return DistributedValues(destinations) if several else destinations


def _require_reduction(aggregation: object, mapped: bool) -> None:
    known = [VariableAggregation.SUM, VariableAggregation.MEAN]
    if not mapped:
        known.append(VariableAggregation.ONLY_FIRST_REPLICA)
    if aggregation not in known:
        raise InvalidArgumentError(
            f"{aggregation!r} names no reduction; use {', '.join(map(str, known))}"
        )


_HOST = "/device:CPU:0"

Step = Callable[[multi_step.MultiStepContext, Any], Any]
"""A step of a loop, as `experimental_run_steps_on_iterator` takes it."""


class HasIterators(ABC):
    """The methods of a dataset of TensorFlow 1.12 that return iterators."""

    @old_spelling("iter(strategy.distribute_datasets_from_function(...))")
    def make_one_shot_iterator(self) -> InputIterator:
        """Return an iterator that starts from the beginning."""
        return self._iterator()

    @old_spelling("iter(strategy.distribute_datasets_from_function(...))")
    def make_initializable_iterator(self) -> InputIterator:
        """Return an iterator that starts from the beginning, again if told to."""
        return self._iterator()

    @abstractmethod
    def _iterator(self) -> InputIterator:
        """Return an iterator that starts from the beginning."""


class PerDeviceDataset(HasIterators):
    """What `DistributionStrategy.distribute_dataset` returns.

    An iterator gives each device one element per step; a last round that has not an element for
    each is dropped.

    Raises:
        InvalidArgumentError: It returns something else. Spec: TWR-16.
    """

    def __init__(self, strategy: Strategy, dataset_fn: Callable[[], Any]) -> None:
        require_function("distribute_dataset", dataset_fn)
        self._strategy = strategy
        self._pipeline = input_function_pipeline(
            lambda context: dataset_fn(),
            strategy.extended._input_worker(),
            InputReplicationMode.PER_WORKER,
        )

    def _iterator(self) -> InputIterator:
        return InputIterator(self._strategy, self._pipeline)


class UndistributedDataset(HasIterators):
    """A dataset as it is, until an iterator is made of it. Spec: TPU-8.

    Raises:
        InvalidArgumentError: It returns something else. Spec: TWR-16.
    """

    def __init__(self, strategy: Strategy, dataset_fn: Callable[[], Any]) -> None:
        self._strategy = strategy
        self._dataset_fn = dataset_fn
        self._dataset = dataset_of(dataset_fn())

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the elements of the dataset."""
        return Reader(self._dataset)

    def _iterator(self) -> InputIterator:
        share = partial(_share, self._dataset_fn)
        mode = InputReplicationMode.PER_WORKER
        return self._strategy._input_fn_iterator(share, mode)


def _share(dataset_fn: Callable[[], Any], context: InputContext) -> Any:
    """Return what one of several hosts reads: in each round the elements of its cores.

    All of them read the whole dataset.
    """
    dataset = dataset_of(dataset_fn())
    if context.num_input_pipelines == 1:
        return dataset
    together = context.num_replicas_in_sync
    each = together // context.num_input_pipelines
    first = context.input_pipeline_id * each

    def own() -> Iterator[Any]:
        elements = Reader(dataset)
        while len(round_ := list(islice(elements, together))) == together:
            yield from round_[first : first + each]

    return own


class MultiStepContext:
    """A `stratagem.MultiStepContext` with the arguments of TensorFlow 1.12.

    Args:
        context: That context.
    """

    def __init__(self, context: multi_step.MultiStepContext) -> None:
        self._context = context

    @property
    def run_op(self) -> None:
        """The operation that would run the loop in a graph: None."""
        return self._context.run_op

    @property
    def last_step_outputs(self) -> dict[str, Any]:
        """What the last step has set, by name."""
        return self._outputs()

    def _outputs(self) -> dict[str, Any]:
        return self._context.last_step_outputs

    @property
    def non_tensor_outputs(self) -> dict[str, Any]:
        """What is no nest of tensors, by name."""
        return self._context.non_tensor_outputs

    @old_spelling("stratagem.MultiStepContext.set_last_step_output with reduce_op")
    def set_last_step_output(
        self, name: str, output: Any, aggregation: VariableAggregation = VariableAggregation.NONE
    ) -> None:
        """Set an output that is of interest after the last step.

        Args:
            name: Its name.
            output: A tensor, or what `call_for_each_tower` returned.
            aggregation: SUM or MEAN of the towers' values, or ONLY_FIRST_TOWER; NONE, between
                towers only, leaves `output` as it is.

        Raises:
            InvalidArgumentError: A tower gives NONE, or it is another one.

        Spec: MSC-6.
        """
        replica = get_replica_context()
        if aggregation is VariableAggregation.NONE:
            self._context.set_last_step_output(name, output)
            return

        def set_reduced(strategy: Strategy, merged: Any) -> None:
            total = reduced(strategy, aggregation, merged, _HOST)
            self._context._set_output(name, total, reduced=True)

        if replica is None:
            set_reduced(get_strategy(), output)
        else:
            replica.merge_call(set_reduced, (output,))

    @old_spelling("stratagem.MultiStepContext.set_non_tensor_output")
    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Set an output of any kind; of towers the list of theirs. Spec: MSC-7."""
        replica = get_replica_context()
        if replica is None:
            self._context.set_non_tensor_output(name, output)
            return

        def set_all(strategy: Strategy, merged: Any) -> None:
            outputs = list(strategy.experimental_local_results(merged))
            self._context._set_other(name, outputs, listed=True)

        replica.merge_call(set_all, (output,))


class CoresContext(MultiStepContext):
    """What a loop on accelerators has returned."""

    def __init__(self, context: multi_step.MultiStepContext, cores: int) -> None:
        super().__init__(context)
        self._cores = cores

    def _outputs(self) -> dict[str, Any]:
        """Return lists of what each core has, where it was not reduced. Spec: MSC-8."""
        outputs = self._context.last_step_outputs.items()
        return {name: self._listed(name, value) for name, value in outputs}

    def _listed(self, name: str, value: Any) -> Any:
        if self._context._is_reduced(name):
            return value
        return [select_replica(core, value) for core in range(self._cores)]


def unpacking(fn: Callable[..., Any]) -> Step:
    """Return a step that calls one of TensorFlow 1.12: `fn(context, *inputs)`.

    Of a list, too, the elements are arguments: a `DataLoader` makes lists of the tuples of its
    dataset. Spec: MSC-1.
    """

    def step(context: multi_step.MultiStepContext, inputs: Any) -> Any:
        several = isinstance(inputs, tuple | list)
        return fn(MultiStepContext(context), *(inputs if several else (inputs,)))

    return step
