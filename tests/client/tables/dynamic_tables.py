"""Dynamic tables for tests, and steps that train them."""

from __future__ import annotations

from typing import Any

import torch

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.nn import DynamicEmbedding

KEYS = torch.tensor([2**62, -5, 0, -(2**63), 2**63 - 1, 7])


def built(strategy: ParameterServerStrategy, **limits: Any) -> DynamicEmbedding:
    with strategy.scope():
        return DynamicEmbedding(2, **limits)


def trained(
    strategy: ParameterServerStrategy, table: DynamicEmbedding, *batches: torch.Tensor
) -> None:
    """One step of SGD for each batch, by the gradient 1."""
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))

    def step(keys: torch.Tensor) -> None:
        optimizer.zero_grad()
        table(keys).sum().backward()
        optimizer.step()

    for keys in batches:
        strategy.run(step, args=(keys,))
