"""Workers that step together read the order that the chief shuffles by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stratagem
from stratagem_deploy import LocalCluster

pytestmark = pytest.mark.cluster


class Rows(Dataset[int]):
    """The numbers from 0 to 31."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, row: int) -> int:
        return row


def shuffled(strategy: stratagem.ParameterServerStrategy) -> Any:
    loader: DataLoader[Any] = DataLoader(Rows(), batch_size=8, shuffle=True)
    return strategy.experimental_distribute_dataset(loader)


def rows_of(dataset: Any) -> list[int]:
    return [row for part in iter(dataset) for row in part.tolist()]


def read(resolver: Any) -> list[list[int]]:
    """Return the rows that this worker reads: in two passes over a loader, and one over another."""
    torch.manual_seed(resolver.task_id)
    strategy = stratagem.ParameterServerStrategy(resolver, consistency="sync")
    dataset = shuffled(strategy)
    passes = [rows_of(dataset), rows_of(dataset), rows_of(shuffled(strategy))]
    strategy.barrier("read")
    return passes


def test_workers_shuffle_by_the_seed_of_the_chief() -> None:
    with LocalCluster(ps=1, workers=2, processes=True) as cluster:
        first, again = cluster.run(read), cluster.run(read)
    for number in range(3):
        rows = [row for worker in first for row in worker[number]]
        assert sorted(rows) == list(range(32)) != rows
    assert len({tuple(each) for each in first[0]}) == 3
    assert again == first
