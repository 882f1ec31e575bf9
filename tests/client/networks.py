"""A small network and its training, the same in every worker."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def network(seed: int = 0) -> nn.Sequential:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    # Workers are threads here, and share torch's own generator.
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)
    return module


def loss_of(module: nn.Module) -> torch.Tensor:
    inputs = torch.linspace(-1, 1, 24).reshape(8, 3)
    prediction: torch.Tensor = module(inputs)
    return prediction.pow(2).mean()


def training_step(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[], torch.Tensor]:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(module)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def equal(ours: nn.Module, theirs: nn.Module) -> bool:
    """Whether two modules have the same parameters, bit by bit."""
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return all(torch.equal(mine, other) for mine, other in pairs)
