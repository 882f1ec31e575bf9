"""A coordinator that is run again after a server was started again without what it had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, FailedPreconditionError, ParameterServerStrategy
from stratagem.coordinator import ClusterCoordinator
from tests.client.coordinator.coordination import coordinating


def trained(strategy: ParameterServerStrategy) -> tuple[nn.Linear, Callable[[], None]]:
    with strategy.scope():
        model = nn.Linear(1, 1)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    return model, step


def test_its_functions_are_refused_until_a_checkpoint_is_restored(tmp_path: Path) -> None:
    with coordinating(num_servers=2, num_workers=1) as here:
        _, step = trained(here.strategy)
        here.coordinator.schedule(step).get()
        here.strategy.save(tmp_path)
        here.strategy.close()
        here.restart_server(1)
        with here.new_strategy() as strategy:
            coordinator = ClusterCoordinator(strategy)
            model, step = trained(strategy)
            with pytest.raises(FailedPreconditionError, match="needs 'bias'"):
                coordinator.schedule(step)
            strategy.restore(tmp_path)
            former = model.bias.detach().clone()
            coordinator.schedule(step).get()
            assert torch.equal(model.bias, former - 1.0)
