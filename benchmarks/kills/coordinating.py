"""The coordinator, which goes on where the one before was killed.

Usage: python -m benchmarks.kills.coordinating FOLDER, with `TF_CONFIG`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.kills.attack import END
from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import TFConfigClusterResolver
from stratagem.coordinator import ClusterCoordinator

ROWS, BATCH = 300, 3
RESULT = "result"
"""A file with the number of passes, the counts of rows, and that of functions."""


def coordinate(folder: Path) -> None:
    """Have workers count rows, until there is an end."""
    with ParameterServerStrategy(TFConfigClusterResolver()) as strategy:
        with strategy.scope():
            rows = Variable(torch.zeros(ROWS, dtype=torch.int64), False, name="rows")
            functions = Variable(torch.tensor(0), False, name="functions")
        coordinator = ClusterCoordinator(strategy)
        loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
        data = coordinator.create_per_worker_dataset(loader, True, "rows")
        while True:
            batches = iter(data)
            for _ in range(batches.remaining):
                coordinator.schedule(_count, args=(batches, rows, functions))
            coordinator.join()
            if (folder / END).exists():
                break
        found = batches.pass_number + 1, rows.numpy().tolist(), int(functions.numpy())
    (folder / RESULT).write_text(json.dumps(found))


def _count(batches: Any, rows: Variable, functions: Variable) -> None:
    """Count the rows of a batch on one server, and the function on the other."""
    (ids,) = next(batches)
    rows.scatter_add(IndexedSlices(torch.ones_like(ids), ids))
    functions.assign_add(1)


if __name__ == "__main__":
    coordinate(Path(sys.argv[1]))
