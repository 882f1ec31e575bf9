"""Optimizers that a `GradScaler` of torch steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, FailedPreconditionError, MirroredStrategy, PerReplica
from tests.client.small_model import assert_same_bytes

pytestmark = pytest.mark.usefixtures("four_cpus")

SCALE = 1024.0


def trained(devices: list[str], steps: int, unscales: bool = False) -> dict[str, Any]:
    """Parameters after steps with scaled losses, and the error, if there is one."""
    torch.manual_seed(0)
    strategy = MirroredStrategy(devices)
    with strategy.scope():
        model = nn.Linear(4, 1)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)

    try:
        for _ in range(steps):
            strategy.run(step, (PerReplica([torch.ones(2, 4)] * len(devices)),))
            scaler.update()
    except FailedPreconditionError as error:
        return {"error": str(error), **model.state_dict()}
    return dict(model.state_dict())


@pytest.mark.parametrize("unscales", [False, True])
def test_several_replicas_that_are_in_sync_are_refused(unscales: bool) -> None:
    before = trained(["CPU:0"], 0)
    found = trained(["CPU:0", "CPU:1"], 1, unscales)
    assert "a GradScaler steps 'SGD'" in found.pop("error")
    assert_same_bytes(found, before)


def test_a_lone_replica_may_have_one() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        sgd.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        sgd.step()
    torch.testing.assert_close(trained(["CPU:0"], 3), dict(model.state_dict()))
