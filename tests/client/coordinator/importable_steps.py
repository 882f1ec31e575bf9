"""What workers run that load no code: a module as a program for them has one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stratagem

FEATURES = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(FEATURES, FEATURES.sum(1, keepdim=True))


class Model(nn.Module):
    """A class of this module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.last = nn.Linear(4, 1)
        self.scale = 2.0

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.scale * self.last(self.layers(inputs))


def batches() -> Iterator[Any]:
    """What a worker reads."""
    loader = DataLoader(DATA, batch_size=8)
    return (batch for _ in range(100) for batch in loader)


def replica_step(
    model: nn.Module, optimizer: Any, inputs: torch.Tensor, targets: torch.Tensor
) -> Any:
    """One step of one replica."""
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def step(model: nn.Module, optimizer: Any, iterator: Any, counter: Any) -> Any:
    """One step of a worker."""
    counter.assign_add(1.0)
    inputs, targets = next(iterator)
    args = (model, optimizer, inputs, targets)
    return stratagem.get_strategy().run(replica_step, args=args)


def total(*losses: torch.Tensor, more: Any = 0) -> Any:
    """Takes what other functions returned."""
    return sum(losses) + more


def kept(value: Any) -> Any:
    """Returns what it is given."""
    return value


def touched(path: str) -> None:
    """Does something that tests see."""
    Path(path).touch()


system = os.system  # of another module
