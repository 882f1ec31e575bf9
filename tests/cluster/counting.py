"""A program that counts which rows its functions have read; tests kill it.

It writes a line for each pass that it begins or goes on with, for each function that has ended, and
at the end what it has counted.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import TFConfigClusterResolver
from stratagem.coordinator import ClusterCoordinator

ROWS, BATCH, PASSES = 60, 3, 2
STEP_SECONDS = 0.03


def count(batches: Any, rows: Variable, functions: Variable) -> None:
    """Counts the rows of a batch on one server, and itself on the other."""
    (ids,) = next(batches)
    time.sleep(STEP_SECONDS)
    rows.scatter_add(IndexedSlices(torch.ones_like(ids), ids))
    time.sleep(STEP_SECONDS)
    functions.assign_add(1)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    strategy = ParameterServerStrategy(TFConfigClusterResolver())
    with strategy.scope():
        rows = Variable(torch.zeros(ROWS, dtype=torch.int64), False, name="rows")
        functions = Variable(torch.tensor(0), False, name="functions")
    coordinator = ClusterCoordinator(strategy)
    loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
    data = coordinator.create_per_worker_dataset(loader, True, "numbers")
    while (batches := iter(data)).pass_number < PASSES:
        say(number=batches.pass_number, remaining=batches.remaining)
        values = [
            coordinator.schedule(count, args=(batches, rows, functions))
            for _ in range(batches.remaining)
        ]
        for value in values:
            value.fetch()
            say(ended=True)
        coordinator.join()
    say(rows=rows.numpy().tolist(), functions=int(functions.numpy()))


if __name__ == "__main__":
    main()
