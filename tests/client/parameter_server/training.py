"""A model, its batches and its loss, the same on all workers."""

from __future__ import annotations

import torch
from torch import nn

BATCH = 6


def make_model() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    # Workers are threads here, and share torch's own generator.
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)
    return module


def batch(number: int) -> torch.Tensor:
    return torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(number))


def loss_of(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = module(inputs)
    return outputs.pow(2).mean()


def bytes_of(module: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in module.parameters()]
