"""Training on a cluster, to be saved and restored."""

from __future__ import annotations

import torch

import stratagem
from stratagem import ParameterServerStrategy
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import Cluster


class Training:
    """A model and its optimizer in the scope of a strategy."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.module = torch.nn.Sequential(
                torch.nn.Linear(3, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)
            )
            self.optimizer = stratagem.DistributedOptimizer(
                torch.optim.Adam(self.module.parameters(), lr=0.1)
            )

    def train(self, steps: int, seed: int = 1) -> list[torch.Tensor]:
        """Trains, and returns what came of it."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            batch = torch.randn(8, 3, generator=generator)
            self.strategy.run(self._step, args=(batch,))
        return self.state()

    def state(self) -> list[torch.Tensor]:
        """The parameters and buffers as they are now."""
        self.strategy.refresh()
        return [value.clone() for value in self.module.state_dict().values()]

    def _step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.module(batch).square().mean().backward()
        self.optimizer.step()


def sharding(cluster: Cluster, shards: int) -> ParameterServerStrategy:
    return cluster.strategy(variable_partitioner=FixedShardsPartitioner(shards))
