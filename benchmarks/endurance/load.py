"""What workers do for as long as there is no end."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

import stratagem
from stratagem import ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver

END = "end"

_KEYS, _ROW, _BATCH = 1 << 40, 16, 256
# Rows are evicted, so that the table stays as large as it is after a while.
_MAX_IDLE = 200
_STEPS_BETWEEN_SAVES = 500


class Model(nn.Module):
    """An embedding of keys that never end, and dense layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = stratagem.nn.DynamicEmbedding(_ROW, max_idle=_MAX_IDLE)
        self.dense = nn.Sequential(nn.Linear(_ROW, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.dense(self.table(keys))
        return scores


def load(resolver: SimpleClusterResolver, folder: Path) -> int:
    """Train, read and save until there is an end; return the number of steps."""
    worker = resolver.task_id or 0
    (folder / f"worker-{worker}.pid").write_text(str(os.getpid()))
    strategy = ParameterServerStrategy(resolver)
    with strategy.scope():
        model = Model()
    optimizers = [
        stratagem.DistributedOptimizer(torch.optim.Adagrad(model.table.parameters(), lr=0.1)),
        stratagem.DistributedOptimizer(torch.optim.Adam(model.dense.parameters(), lr=0.001)),
    ]

    def step(keys: torch.Tensor) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(keys).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    steps = 0
    while not (folder / END).exists():
        strategy.run(step, args=(torch.randint(_KEYS, (_BATCH,)),))
        steps += 1
        if worker == 0 and steps % _STEPS_BETWEEN_SAVES == 0:
            strategy.save(folder / "checkpoints", keep=2)
    return steps
