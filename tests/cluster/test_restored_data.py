"""Data whose account goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster

ROWS, BATCH = 12, 2


@contextmanager
def restored(folder: Path) -> Iterator[ParameterServerStrategy]:
    """A fresh cluster that begins with a folder's checkpoint, if there is one."""
    with (
        LocalCluster(ps=2, worker_servers=1, restore=folder) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        yield strategy


def count(batches: Any, counts: Variable) -> None:
    (rows,) = next(batches)
    counts.scatter_add(IndexedSlices(torch.ones_like(rows), rows))


def run(strategy: ParameterServerStrategy, most: int) -> tuple[Variable, int]:
    """Lets so many functions count, or as many as there are batches left."""
    with strategy.scope():
        counts = Variable(torch.zeros(ROWS, dtype=torch.int64), False, name="counts")
    coordinator = ClusterCoordinator(strategy)
    loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
    batches = iter(coordinator.create_per_worker_dataset(loader, True, "rows"))
    for _ in range(min(most, batches.remaining)):
        coordinator.schedule(count, args=(batches, counts))
    coordinator.join()
    return counts, batches.pass_number


def test_servers_that_begin_with_a_checkpoint_go_on_with_its_pass(
    tmp_path: Path,
) -> None:
    with restored(tmp_path) as strategy:
        run(strategy, 2)
        strategy.save(tmp_path)
    with restored(tmp_path) as strategy:
        counts, number = run(strategy, ROWS)
        assert (counts.numpy().tolist(), number) == ([1] * ROWS, 0)
