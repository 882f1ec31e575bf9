"""Optimizers of other packages train on servers as they do locally; see `make optimizers-test`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stratagem
from stratagem import DistributedOptimizer
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running
from tests.nests import same_bytes

CASES: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("lion_pytorch", "Lion", {"lr": 0.01, "weight_decay": 0.1}),
    ("adabelief_pytorch", "AdaBelief", {"rectify": False, "print_change_log": False}),
    ("torch_optimizer", "AdaBound", {}),
    ("torch_optimizer", "AdaMod", {}),
    ("torch_optimizer", "PID", {"lr": 0.01}),
    ("torch_optimizer", "QHAdam", {}),
    ("torch_optimizer", "QHM", {"lr": 0.01}),
    ("torch_optimizer", "SGDW", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01}),
    ("torch_optimizer", "Yogi", {}),
)


def optimizer_class(package: str, name: str) -> Any:
    found = pytest.importorskip(package, reason=f"{package} is not installed; optimizers-test")
    return getattr(found, name)


@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize(("package", "name", "settings"), CASES)
def test_an_optimizer_of_another_package_trains_as_it_does_locally(
    package: str, name: str, settings: Mapping[str, Any], shards: int
) -> None:
    cls = optimizer_class(package, name)
    reference, generator = nn.Linear(6, 5), torch.Generator().manual_seed(5)
    partitioner = FixedShardsPartitioner(shards) if shards else None
    with (
        running(num_servers=2) as cluster,
        cluster.strategy(variable_partitioner=partitioner) as strategy,
    ):
        with strategy.scope():
            model = copy.deepcopy(reference)
        optimizer = DistributedOptimizer(cls(model.parameters(), **settings))
        plain = cls(reference.parameters(), **settings)
        for batch in torch.randn(6, 4, 6, generator=generator):
            step(reference, plain, batch)
            strategy.run(step, (model, optimizer, batch))
        assert same_bytes(model.state_dict(), reference.state_dict())
        assert same_bytes(optimizer.state_dict(), plain.state_dict())


@pytest.mark.parametrize(
    ("package", "name"), [("torch_optimizer", "Lamb"), ("torch_optimizer", "RAdam")]
)
def test_an_optimizer_that_decides_by_values_is_refused_with_its_line(
    package: str, name: str
) -> None:
    cls = optimizer_class(package, name)
    with running(num_servers=1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = nn.Linear(6, 5)
        with pytest.raises(stratagem.UpdateFunctionError, match=rf"{name.lower()}\.py:\d+"):
            DistributedOptimizer(cls(model.parameters()))


def step(model: nn.Module, optimizer: Any, batch: Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
