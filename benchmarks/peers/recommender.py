"""The training of the MovieLens example, as all contestants with PyTorch do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers.ratings import RATE, batches, load
from examples.movielens import WEIGHT_DECAY, Recommender

__all__ = ["Recommender", "adamw", "drawn", "stepping"]


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """The optimizer of the example."""
    return torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY)


def drawn(file: str) -> Iterator[Tensor]:
    """Endless batches of users, items and ratings, int64 (3, batch)."""
    return (torch.from_numpy(batch).T for batch in batches(load(file)))


def stepping(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor, Tensor, Tensor], None]:
    """What trains the model on a batch."""

    def step(user: Tensor, item: Tensor, rating: Tensor) -> None:
        loss = functional.mse_loss(model(user, item), rating.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
