"""A program that coordinates, and stands by before. `python -m benchmarks.successions` kills it.

Usage: python -m benchmarks.successions.program FOLDER, with `TF_CONFIG`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator, stand_by

ROWS, BATCH = 3_000, 3

END = "end"
"""A file; once it is there, the pass under way is the last one."""

RESULT = "result"
"""A file with the number of passes, the least and the largest count of a row, and the functions."""


def beats(folder: Path) -> Path:
    """Return the file to which each program writes, a line for each function that has ended.

    A line has the process and the time, in seconds of the clock that all processes share.
    """
    return folder / "beats"


def coordinate(folder: Path) -> None:
    """Have workers count rows, until there is an end."""
    (folder / f"standing-{os.getpid()}").touch()
    with stand_by(), ParameterServerStrategy() as strategy:
        with strategy.scope():
            rows = Variable(torch.zeros(ROWS, dtype=torch.int64), False, name="rows")
            functions = Variable(torch.tensor(0), False, name="functions")
        coordinator = ClusterCoordinator(strategy)
        loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
        data = coordinator.create_per_worker_dataset(loader, True, "rows")
        with beats(folder).open("a", buffering=1) as file:
            passes = _passes(coordinator, data, (rows, functions), folder, file)
        found = passes, int(rows.numpy().min()), int(rows.numpy().max()), int(functions.numpy())
    (folder / RESULT).write_text(" ".join(map(str, found)))


def _passes(coordinator: Any, data: Any, counters: Any, folder: Path, file: Any) -> int:
    while True:
        batches = iter(data)
        values = [
            coordinator.schedule(_count, args=(batches, *counters))
            for _ in range(batches.remaining)
        ]
        for value in values:
            value.fetch()
            file.write(f"{os.getpid()} {time.monotonic()}\n")
        coordinator.join()
        if (folder / END).exists():
            return int(batches.pass_number) + 1


def _count(batches: Any, rows: Variable, functions: Variable) -> None:
    """Count the rows of a batch on one server, and the function on the other."""
    (ids,) = next(batches)
    rows.scatter_add(IndexedSlices(torch.ones_like(ids), ids))
    functions.assign_add(1)


if __name__ == "__main__":
    coordinate(Path(sys.argv[1]))
