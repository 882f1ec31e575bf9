"""A coordinator, as a program of its own: `python -m benchmarks.stalls.coordinating FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from stratagem import ParameterServerStrategy, Variable
from stratagem.cluster_resolver import TFConfigClusterResolver
from stratagem.coordinator import ClusterCoordinator

_AT_ONCE = 4


def coordinate(folder: Path) -> None:
    """Have workers count until the process is killed."""
    strategy = ParameterServerStrategy(TFConfigClusterResolver())
    with strategy.scope():
        count = Variable(torch.tensor(0), trainable=False, name="count")
    coordinator = ClusterCoordinator(strategy)
    (folder / "chief:0.pid").write_text(str(os.getpid()))
    done = 0
    while True:
        for _ in range(_AT_ONCE):
            coordinator.schedule(work, args=(count, folder))
        coordinator.join()
        done += _AT_ONCE
        (folder / "steps-0").write_text(str(done))


def work(count: Variable, folder: Path) -> None:
    """Count; of all workers, the one that finds the file first never ends."""
    count.assign_add(1)
    mine = folder / f"hanging-{os.getpid()}"
    try:
        os.rename(folder / "hang", mine)
    except FileNotFoundError:
        return
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    coordinate(Path(sys.argv[1]))
