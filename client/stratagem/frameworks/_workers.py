"""What this worker reads of what all workers have."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
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


def gathered(strategy: ParameterServerStrategy, tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that the workers call this with, in the order of the workers.

    All workers call it equally often, and wait for each other, as at a barrier. Shapes and dtypes
    may differ. A coordinator's program and an evaluator have none but their own.

    Raises:
        FailedPreconditionError: A worker was started again, and has not gathered as often.
        DeadlineExceededError: A worker did not come.
    """
    if input_of(strategy).num_input_pipelines == 1:
        return [tensor]
    meet = partial(strategy.barrier, "gather")
    return strategy.extended._cluster.gather(tensor, meet)
