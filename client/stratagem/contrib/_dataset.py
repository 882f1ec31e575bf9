"""Datasets whose elements go to one device after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from stratagem._core.deprecation import old_spelling
from stratagem._core.options import InputContext
from stratagem._input.input_function import dataset_of, input_function_pipeline
from stratagem._input.iterator import InputIterator
from stratagem._input.options import InputReplicationMode
from stratagem._input.reader import Reader
from stratagem._strategies.extended_arguments import require_function
from stratagem._strategies.strategy import Strategy


class HasIterators(ABC):
    """The part of a dataset of then by which it is read."""

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

    Args:
        strategy: The strategy.
        dataset_fn: Returns the dataset.

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

    Args:
        strategy: The strategy.
        dataset_fn: Returns the dataset.

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
