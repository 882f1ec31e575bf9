"""A small hosted model, and what its tests ask about it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.client.one_copy import OneCopy

STEPS = 12
BATCHES = torch.randn(STEPS, 6, 3, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(features).tanh())
        return output


def seeded_model() -> Any:
    torch.manual_seed(3)
    return Model()


def loss_of(model: Any, features: Tensor) -> Any:
    return (model(features) - features.sum(1, keepdim=True)).square().mean()


def hosted_model(replicas: int = 1) -> tuple[OneCopy, Any]:
    strategy = OneCopy(replicas)
    with strategy.scope():
        model = seeded_model()
    return strategy, model


def current(strategy: OneCopy, model: nn.Module) -> list[Tensor]:
    """The parameters after the last step."""
    strategy.run(lambda: None)
    return [parameter.clone() for parameter in parameters_of(model)]


def parameters_of(model: nn.Module) -> list[Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def assert_same_bytes(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
