"""A model whose sums count the steps that were applied to it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    ParameterServerStrategy,
)
from stratagem.consistency import Consistency


class Counter:
    """Two sums, one on each server, to which each step of a worker adds 1."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        consistency: Consistency | str | None = None,
    ) -> None:
        with strategy.scope():
            self.module = nn.Linear(1, 1)
            nn.init.zeros_(self.module.weight)
            nn.init.zeros_(self.module.bias)
        parameters = list(self.module.parameters())
        sgd = torch.optim.SGD(parameters, lr=1.0, maximize=True)
        self.optimizer = DistributedOptimizer(sgd, "sum", consistency=consistency)
        self._strategy = strategy
        self.before_push: Callable[[], object] = lambda: None

    def add(self) -> None:
        self._strategy.run(self._step)

    def _step(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.before_push()
        self.optimizer.step()

    def sums(self) -> list[float]:
        """What the servers have once all workers are here."""
        self._strategy.barrier()
        return [parameter.item() for parameter in self.module.parameters()]
