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
from tests.client.networks import network, training_step


def trained(strategy: ParameterServerStrategy) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    with strategy.scope():
        model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, training_step(model, DistributedOptimizer(sgd))


def test_its_functions_are_refused_until_a_checkpoint_is_restored(tmp_path: Path) -> None:
    with coordinating(num_servers=2, num_workers=1) as here:
        _, step = trained(here.strategy)
        here.coordinator.schedule(step).get()
        here.strategy.save(tmp_path)
        here.strategy.close()
        here.restart_server(1)
        with here.new_strategy() as strategy:
            coordinator = ClusterCoordinator(strategy)
            _, step = trained(strategy)
            with pytest.raises(FailedPreconditionError, match=r"needs '0\.bias'"):
                coordinator.schedule(step)
            strategy.restore(tmp_path)
            losses = [coordinator.schedule(step).fetch() for _ in range(2)]
            assert losses[1] != losses[0]
