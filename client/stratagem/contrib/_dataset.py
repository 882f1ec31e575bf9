"""Datasets whose elements go to one device after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stratagem._deprecation import old_spelling
from stratagem._input.input_function import input_function_pipeline
from stratagem._input.iterator import InputIterator
from stratagem._input.options import InputReplicationMode
from stratagem._input.reader import Reader
from stratagem._strategies.strategy import Strategy


class PerDeviceDataset:
    """What `DistributionStrategy.distribute_dataset` returns.

    An iterator gives each device one element per step; a last round that has not an
    element for each is dropped.

    Args:
        strategy: The strategy.
        dataset_fn: Returns the dataset.

    Raises:
        InvalidArgumentError: It returns something else. Spec: TWR-16.
    """

    def __init__(self, strategy: Strategy, dataset_fn: Callable[[], Any]) -> None:
        self._strategy = strategy
        self._pipeline = input_function_pipeline(
            lambda context: dataset_fn(),
            strategy.extended._input_worker(),
            InputReplicationMode.PER_WORKER,
        )

    @old_spelling("iter(strategy.distribute_datasets_from_function(...))")
    def make_one_shot_iterator(self) -> InputIterator:
        """Return an iterator that starts from the beginning."""
        return InputIterator(self._strategy, self._pipeline)

    @old_spelling("iter(strategy.distribute_datasets_from_function(...))")
    def make_initializable_iterator(self) -> InputIterator:
        """Return an iterator that starts from the beginning, again if told to."""
        return InputIterator(self._strategy, self._pipeline)


class UndistributedDataset(PerDeviceDataset):
    """A dataset as it is, until an iterator is made of it. Spec: TPU-8."""

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the elements of the dataset."""
        return Reader(self._pipeline.datasets[0])
