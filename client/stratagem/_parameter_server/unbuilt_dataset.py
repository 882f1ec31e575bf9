"""Distributed datasets of a coordinator's program, which only workers read."""

from __future__ import annotations

from collections.abc import Callable

from stratagem._core.contexts.worker_index import runs_on_a_worker
from stratagem._input.dataset import DistributedDataset
from stratagem._input.pipeline import InputPipeline
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import InvalidArgumentError


class UnbuiltDataset(DistributedDataset):
    """A `DistributedDataset` that each worker makes when a function reads it.

    Args:
        strategy: The strategy.
        build: Makes it, on a worker.

    Spec: PS2-13.
    """

    def __init__(self, strategy: Strategy, build: Callable[[], DistributedDataset]) -> None:
        self._strategy = strategy
        self._build = build
        self._made: DistributedDataset | None = None

    @property
    def _pipeline(self) -> InputPipeline:
        """Of the worker that runs this.

        Raises:
            InvalidArgumentError: None does.
        """
        if not runs_on_a_worker():
            raise InvalidArgumentError(
                "To use this dataset, you need to pass this dataset to "
                "ClusterCoordinator.create_per_worker_dataset: workers read it, and "
                "not the coordinator's program, which schedules functions that do"
            )
        if self._made is None:
            self._made = self._build()
        return self._made._pipeline
