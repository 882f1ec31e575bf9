"""A coordinator that has workers count the batches of a dataset."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.kills.attack import WORKERS, Attack
from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator

_ROWS, _BATCH = 300, 3


def batched(attack: Attack) -> list[str]:
    """Have worker servers count rows while they and servers are killed; return what is wrong."""
    with (
        attack.cluster(worker_servers=WORKERS) as running,
        ParameterServerStrategy(running.cluster_resolver) as strategy,
        attack.on(running, "ps", "worker server"),
    ):
        with strategy.scope():
            rows = Variable(torch.zeros(_ROWS, dtype=torch.int64), False, name="rows")
            functions = Variable(torch.tensor(0), False, name="functions")
        coordinator = ClusterCoordinator(strategy)
        passes = 0
        while not attack.end.exists():
            _count_all(coordinator, f"pass-{passes}", rows, functions)
            passes += 1
        counts, calls = rows.numpy(), int(functions.numpy())
    faults = [
        f"row {row} counted {each} times in {passes} passes"
        for row, each in enumerate(counts)
        if each != passes
    ]
    expected = passes * _ROWS // _BATCH
    return faults if calls == expected else [*faults, f"{calls} functions ran of {expected}"]


def _count_all(
    coordinator: ClusterCoordinator, name: str, rows: Variable, functions: Variable
) -> None:
    loader = DataLoader(TensorDataset(torch.arange(_ROWS)), _BATCH, shuffle=True)
    batches = iter(coordinator.create_per_worker_dataset(loader, True, name))
    for _ in range(batches.remaining):
        coordinator.schedule(_count, args=(batches, rows, functions))
    coordinator.join()


def _count(batches: Any, rows: Variable, functions: Variable) -> None:
    """Count the rows of a batch on one server, and the function on the other."""
    (ids,) = next(batches)
    rows.scatter_add(IndexedSlices(torch.ones_like(ids), ids))
    functions.assign_add(1)
