"""Every optimizer that servers run trains a partitioned parameter as torch does.

Partitioning takes for granted that a rule computes each element from that element's own value,
gradient and state. A rule that looks at a whole tensor, as Adafactor looks at rows and columns,
LBFGS at dot products and Muon at singular values, fails here.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stratagem import DistributedOptimizer
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_proto.programs.optimizers import OPTIMIZERS
from tests.client.clusters import running
from tests.nests import same_bytes

STEPS = 12
ROWS, COLUMNS, SHARDS = 11, 5, 3

# Settings besides the defaults, which every optimizer of the list is tried with.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"amsgrad": True, "weight_decay": 0.01},
    "AdamW": {"amsgrad": True, "maximize": True},
    "SparseAdam": {"betas": (0.8, 0.99)},
    "Adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.5},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "Adamax": {"weight_decay": 0.01},
    "NAdam": {"weight_decay": 0.01, "decoupled_weight_decay": True},
    "RAdam": {"weight_decay": 0.01},
    "Adadelta": {"weight_decay": 0.01},
    "Rprop": {"etas": (0.4, 1.3)},
    "ASGD": {"t0": 3.0},
    "RowWiseAdagrad": {"weight_decay": 0.1, "maximize": True},
}
FOREACH = pytest.mark.full("each optimizer is tried with two other settings")
CASES = [
    *((name, {}) for name in OPTIMIZERS),
    *SETTINGS.items(),
    *(
        pytest.param(name, {"foreach": True}, marks=FOREACH)
        for name, rule in OPTIMIZERS.items()
        if "foreach" in inspect.signature(rule.cls).parameters
    ),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_a_listed_optimizer_trains_a_partitioned_parameter_as_torch_does(
    name: str, settings: Mapping[str, Any]
) -> None:
    torch.manual_seed(3)
    cls: Any = OPTIMIZERS[name].cls
    reference = nn.Embedding(ROWS, COLUMNS, sparse=name == "SparseAdam")
    with (
        running(num_servers=2) as cluster,
        cluster.strategy(variable_partitioner=FixedShardsPartitioner(SHARDS)) as strategy,
    ):
        with strategy.scope():
            model = copy.deepcopy(reference)
        assert len(strategy.extended.variable_placements()) == SHARDS
        optimizer = DistributedOptimizer(cls(model.parameters(), **settings))
        plain = cls(reference.parameters(), **settings)
        generator = torch.Generator().manual_seed(7)
        for _ in range(STEPS):
            ids = torch.randint(0, ROWS, (6,), generator=generator)
            step(reference, plain, ids)
            strategy.run(step, (model, optimizer, ids))
        assert same_bytes(model.state_dict(), reference.state_dict())
        assert same_bytes(optimizer.state_dict(), plain.state_dict())


def step(model: nn.Embedding, optimizer: Any, ids: Tensor) -> None:
    optimizer.zero_grad()
    model(ids).cos().sum().backward()
    optimizer.step()


def test_the_settings_are_those_of_listed_optimizers() -> None:
    assert SETTINGS.keys() == OPTIMIZERS.keys()
