"""Nesterov momentum that is delayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from stratagem.optim import DelayedNesterov


def test_delayed_momentum_of_one_gradient_is_that_of_sgd() -> None:
    ours, theirs = (nn.Parameter(torch.ones(7)) for _ in range(2))
    delayed = DelayedNesterov([ours], lr=0.1)
    sgd = SGD([theirs], lr=0.1, momentum=0.9, nesterov=True)
    for step in range(10):
        ours.grad = theirs.grad = torch.linspace(-1.0, step, 7)
        delayed.step()
        sgd.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "settings", [{"lr": -1}, {"momentum": 1}, {"delay": 0}, {"delay": 2, "spread": 0.6}]
)
def test_delayed_momentum_refuses_numbers_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        DelayedNesterov([nn.Parameter(torch.ones(1))], **settings)
