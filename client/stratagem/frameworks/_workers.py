"""What this worker reads of what all workers have."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, Subset

from stratagem._core.options import InputContext
from stratagem._parameter_server.strategy import ParameterServerStrategy


def input_of(strategy: ParameterServerStrategy) -> InputContext:
    """Return which of the workers that train together this process is, and how many there are."""
    return strategy.extended._input_context()


def part(strategy: ParameterServerStrategy, dataset: Dataset[Any]) -> Subset[Any]:
    """Return what this worker reads of a dataset that all workers have.

    It is each n-th example of n workers'. All parts are equally large, so that all workers take as
    many steps: up to n - 1 examples at the end are in no part.

    Args:
        strategy: The strategy.
        dataset: A dataset with a length, the same in all workers.
    """
    context, length = input_of(strategy), len(dataset)  # type: ignore[arg-type]
    workers = context.num_input_pipelines
    return Subset(dataset, range(context.input_pipeline_id, length - length % workers, workers))
