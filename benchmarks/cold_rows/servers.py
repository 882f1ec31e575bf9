"""A server of its own process, whose table a client trains over gRPC."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

import stratagem
from benchmarks.cold_rows.contestants import COLUMNS, FILLED_AT_ONCE, ROW_BYTES, Measured, drawn
from stratagem_deploy import LocalCluster


def measure(name: str, rows: int, steps: int, folder: Path) -> Measured:
    """Train a table of a server, in memory or with the budget of `name`, and as it says."""
    nbytes = None if "memory" in name else rows * ROW_BYTES // 4
    place = None if nbytes is None else folder
    torch.set_num_threads(1)
    with (
        LocalCluster(
            1, workers=0, processes=True, table_bytes=nbytes, table_folder=place
        ) as cluster,
        stratagem.ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        seconds = _train(strategy, rows, steps, "lookahead" in name)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return Measured(steps / seconds, most / 1024, 0, 0)


def _train(
    strategy: stratagem.ParameterServerStrategy, rows: int, steps: int, looks_ahead: bool
) -> float:
    with strategy.scope():
        table = stratagem.nn.Embedding(rows, COLUMNS)
        torch.nn.init.zeros_(table.weight)
    adagrad = torch.optim.Adagrad(table.parameters(), lr=0.1)
    optimizer = stratagem.DistributedOptimizer(adagrad)

    def step(keys: torch.Tensor) -> None:
        optimizer.zero_grad()
        table(keys).sum().backward()
        optimizer.step()

    names = torch.from_numpy(np.random.default_rng(1).permutation(rows))
    for some in names.split(FILLED_AT_ONCE):
        strategy.run(step, args=(some,))
    batches = [names[torch.from_numpy(each)] for each in drawn(rows, steps + 20)]
    for keys in batches[:20]:
        strategy.run(step, args=(keys,))
    ahead = strategy.lookahead(batches[20:], lambda keys: [(table, keys)])
    began = time.perf_counter()
    for keys in ahead if looks_ahead else batches[20:]:
        strategy.run(step, args=(keys,))
    return time.perf_counter() - began


if __name__ == "__main__":
    given = iter(sys.argv[1:])
    print(*measure(next(given), int(next(given)), int(next(given)), Path(next(given))))
