"""Workers do without the compiler of torch until they compile something."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

pytestmark = pytest.mark.long


def loaded() -> bool:
    return "torch._dynamo" in sys.modules


def trained(resolver: ClusterResolver) -> tuple[float, list[bool]]:
    """A weight after a step and a compiled step, and whether each has loaded the compiler."""
    with ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            model = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(model.weight)
        sgd = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

        def step() -> bool:
            sgd.zero_grad()
            (-model.weight.sum()).backward()
            sgd.step()
            return loaded()

        seen = [strategy.run(step), strategy.run(torch.compile(step, backend="eager"))]
        return model.weight.item(), seen


def stepped_here(resolver: ClusterResolver) -> tuple[float, bool]:
    """A weight after compiled steps of an optimizer of torch, made while no compiler was there."""
    with ParameterServerStrategy(resolver):
        weight = nn.Parameter(torch.zeros(()))
        adagrad = torch.optim.Adagrad([weight], lr=1.0)
        early = loaded()

    @torch.compile(backend="eager")
    def step() -> None:
        adagrad.zero_grad()
        (-weight).backward()
        adagrad.step()

    step()
    adagrad.load_state_dict(adagrad.state_dict())
    return weight.item(), early


def test_a_step_loads_no_compiler_and_may_be_compiled() -> None:
    with LocalCluster(processes=True) as cluster:
        assert cluster.run(trained) == [(2.0, [False, True])]
        assert cluster.run(stepped_here) == [(1.0, False)]
