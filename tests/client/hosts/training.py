"""A small model, trained on hosts and by a plain loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stratagem import DistributedOptimizer, MultiStepContext, TPUStrategy

Batch = tuple[Tensor, Tensor]


def global_batches(count: int, rows: int = 8) -> list[Batch]:
    """Return batches for all cores together, the same in every call."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, rows, 3, generator=generator)
    return [(x, x.sum(1, keepdim=True) + 1) for x in inputs]


def model() -> nn.Module:
    """Return a model, equal in every call."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


class Trained:
    """A model in the scope of a strategy, and a step that trains it."""

    def __init__(self, strategy: TPUStrategy) -> None:
        self._strategy = strategy
        with strategy.scope():
            self.model = model()
        self.optimizer = DistributedOptimizer(optimizer(self.model.parameters()))

    def step(self, context: MultiStepContext, inputs: Any) -> None:
        losses = self._strategy.run(self._train, inputs)
        context.set_last_step_output("loss", losses, "mean")

    def _train(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = (self.model(inputs) - targets).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def plainly_trained(batches: list[Batch]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model after a loop of torch over the same batches, and its optimizer."""
    trained = model()
    plain = optimizer(trained.parameters())
    for inputs, targets in batches:
        plain.zero_grad()
        (trained(inputs) - targets).square().mean().backward()
        plain.step()
    return trained, plain


def parameters_of_cores(strategy: TPUStrategy, trained: nn.Module) -> list[Tensor]:
    """Return what each core of each host has of all parameters, as one tensor."""

    def own() -> Tensor:
        return torch.cat([each.detach().flatten() for each in trained.parameters()])

    return list(strategy.experimental_local_results(strategy.run(own)))
