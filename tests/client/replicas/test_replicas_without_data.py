"""Replicas that get no rows, as in the last step of an epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    CentralStorageStrategy,
    DistributedOptimizer,
    MirroredStrategy,
    PerReplica,
    ReduceOp,
    RunOptions,
)

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.mark.parametrize("kind", [MirroredStrategy, CentralStorageStrategy])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN])
@pytest.mark.parametrize("run_concurrently", [False, True])
def test_they_do_not_count_in_the_step(kind: Any, op: ReduceOp, run_concurrently: bool) -> None:
    """Not even where the loss of nothing has a gradient, or is no number."""
    strategy = kind(["CPU:0", "CPU:1", "CPU:2"])
    with strategy.scope():
        model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DistributedOptimizer(sgd, op)

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        (model(rows).mean() * rows.mean()).backward()
        optimizer.step()

    rows = PerReplica((torch.ones(2, 1), torch.ones(1, 1), torch.ones(0, 1)))
    options = RunOptions(run_concurrently=run_concurrently)
    strategy.run(step, (rows,), options=options)
    weights = strategy.run(lambda: model.weight.item())
    expected = 1.0 - 0.1 * (2.0 if op is ReduceOp.SUM else 1.0)
    for weight in strategy.experimental_local_results(weights):
        assert weight == pytest.approx(expected)


def test_a_step_of_no_data_at_all_changes_nothing() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = nn.Linear(1, 1)
    before = model.weight.detach().clone()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(rows: torch.Tensor) -> None:
        model(rows).mean().backward()
        optimizer.step()

    strategy.run(step, (PerReplica((torch.ones(0, 1), torch.ones(0, 1))),))
    assert torch.equal(model.weight, before)
