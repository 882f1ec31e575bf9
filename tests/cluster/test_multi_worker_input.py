"""Data that workers without servers share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem import (
    AutoShardPolicy,
    InputContext,
    MultiWorkerMirroredStrategy,
    PerReplica,
)
from tests.cluster.two_workers import on_two_workers

pytestmark = pytest.mark.cluster

Strategy = MultiWorkerMirroredStrategy
TEN = [torch.arange(10)[start : start + 4] for start in (0, 4, 8)]


def numbers(distributed: Any) -> list[list[list[int]]]:
    """Return what each replica gets, step by step."""
    return [[part.tolist() for part in parts.values] for parts in distributed]


def test_a_batch_is_dealt_to_the_workers_in_turn() -> None:
    def read(strategy: Strategy) -> Any:
        return numbers(strategy.experimental_distribute_dataset(TEN))

    assert on_two_workers(read) == [
        [[[0], [2]], [[4], [6]], [[8], []]],
        [[[1], [3]], [[5], [7]], [[9], []]],
    ]


def test_every_worker_may_read_everything() -> None:
    def read(strategy: Strategy) -> Any:
        policy = AutoShardPolicy.OFF
        distributed = strategy.experimental_distribute_dataset(TEN, auto_shard_policy=policy)
        return numbers(distributed)

    first, second = on_two_workers(read)
    assert first == second
    assert sorted(x for step in first for part in step for x in part) == list(range(10))


def test_loaders_shuffle_alike_on_all_workers() -> None:
    def read(strategy: Strategy) -> Any:
        def read_once() -> Any:
            loader = DataLoader(TensorDataset(torch.arange(24)), batch_size=8, shuffle=True)
            distributed = strategy.experimental_distribute_dataset(loader)
            return torch.cat([part for (parts,) in distributed for part in parts.values]).tolist()

        # A loader is made anew for each epoch.
        return read_once(), read_once()

    first, again = zip(*on_two_workers(read), strict=True)
    for seen in (first, again):
        rows = [row for own in seen for row in own]
        assert sorted(rows) == list(range(24)) != rows
    assert first != again


def test_all_workers_stop_together() -> None:
    def read(strategy: Strategy) -> Any:
        def dataset_fn(context: InputContext) -> Any:
            number = context.input_pipeline_id
            return [torch.full((2, 3), number)] * (2 + 4 * number)

        distributed = strategy.distribute_datasets_from_function(dataset_fn)
        sums = []
        for parts in distributed:
            assert isinstance(parts, PerReplica)
            assert all(part.shape[1:] == (3,) for part in parts.values)
            ones = strategy.run(lambda part: torch.ones(len(part)), (parts,))
            sums.append(strategy.reduce("sum", ones, axis=0).item())
        return sums

    assert on_two_workers(read) == [[8, 4, 4], [8, 4, 4]]
