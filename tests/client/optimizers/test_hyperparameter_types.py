"""Hyperparameters that are no plain floats: tensors and NumPy's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from stratagem import (
    DistributedOptimizer,
    InvalidTypeError,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
)
from stratagem_proto.programs.optimizers import OPTIMIZERS
from tests.client.clusters import running

pytestmark = pytest.mark.usefixtures("four_cpus")

RATES: dict[str, Callable[[], Any]] = {
    "float32 tensor": lambda: torch.tensor(0.1),
    "bfloat16 tensor": lambda: torch.tensor(0.1, dtype=torch.bfloat16),
    "int64 tensor": lambda: torch.tensor(1),
    "tensor of a row": lambda: torch.tensor([0.1]),
    "np.float32": lambda: np.float32(0.1),
    "np.float64": lambda: np.float64(0.1),
    "np.int64": lambda: np.int64(1),
    "array of float32": lambda: np.array(0.1, dtype=np.float32),
}
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "mirrored": lambda: MirroredStrategy(["CPU:0", "CPU:1"]),
    "workers": MultiWorkerMirroredStrategy,
    "one device": lambda: OneDeviceStrategy("CPU:1"),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[ParameterServerStrategy]:
    with running(2) as cluster, cluster.strategy() as strategy:
        yield strategy


class Tables(nn.Module):
    """Parameters of several sizes, whose gradients are dense or rows."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.users = nn.Embedding(7, 5, sparse=sparse)
        self.items = nn.Embedding(4, 3, sparse=sparse)

    def forward(self, number: int) -> torch.Tensor:
        rows = torch.tensor([number % 7, (number + 2) % 7])
        users, items = self.users(rows), self.items(rows % 4)
        return torch.add((users**2).sum(), (items**3).sum(), alpha=0.7)


def trained(
    module: Tables, optimizer: Optimizer, run: Callable[[Callable[[], None]], object], later: Any
) -> list[torch.Tensor]:
    """Return the parameters after some steps, of which the last have another learning rate."""
    for number in range(6):
        if number == 4:
            optimizer.param_groups[0]["lr"] = later

        def step(number: int = number) -> None:
            optimizer.zero_grad()
            module(number).backward()
            optimizer.step()

        run(step)
    return [parameter.detach().clone() for parameter in module.parameters()]


def trains_like_torch(strategy: Strategy, name: str, sparse: bool, values: Any) -> None:
    cls: Any = OPTIMIZERS[name].cls

    def optimizer(module: nn.Module) -> Optimizer:
        made: Optimizer = cls(module.parameters(), **values())
        return made

    alone, later = Tables(sparse), values().get("lr", 0.1)
    expected = trained(alone, optimizer(alone), lambda step: step(), later)
    with strategy.scope():
        module = Tables(sparse)
    found = trained(module, DistributedOptimizer(optimizer(module)), strategy.run, later)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs), (ours - theirs).abs().max()


def _takes(name: str, kind: str) -> bool:
    # Torch fails with these.
    return name not in ("RAdam", "Rprop") or not kind.startswith("array")


def _unless(is_quick: bool) -> list[pytest.MarkDecorator]:
    return [] if is_quick else [pytest.mark.long]


# Quick ones have each optimizer with a tensor or a number, and each kind with some optimizer.
CASES = [
    pytest.param(
        name,
        kind,
        sparse,
        id=f"{name}-{kind}-{'rows' if sparse else 'dense'}",
        marks=_unless(place % len(RATES) == column),
    )
    for place, name in enumerate(OPTIMIZERS)
    for column, kind in enumerate(RATES)
    for sparse in (False, True)
    if _takes(name, kind) and sparse == (name == "SparseAdam")
] + [
    pytest.param(name, kind, True, id=f"{name}-{kind}-rows", marks=_unless(name == quick))
    for name in ("SGD", "Adagrad")
    for kind, quick in (("float32 tensor", "SGD"), ("np.float32", "Adagrad"))
]


@pytest.mark.parametrize(("name", "kind", "sparse"), CASES)
def test_servers_give_the_bytes_of_torch(
    servers: ParameterServerStrategy, name: str, kind: str, sparse: bool
) -> None:
    trains_like_torch(servers, name, sparse, lambda: {"lr": RATES[kind]()})


COPIES = [
    pytest.param(strategy, name, kind, marks=_unless((row + column) % 4 == 2 * place))
    for row, strategy in enumerate(STRATEGIES)
    for place, name in enumerate(("SGD", "NAdam"))
    for column, kind in enumerate(["float32 tensor", "np.float32", "np.int64", "array of float32"])
]


@pytest.mark.parametrize(("strategy", "name", "kind"), COPIES)
def test_copies_get_the_bytes_of_torch(strategy: str, name: str, kind: str) -> None:
    trains_like_torch(STRATEGIES[strategy](), name, False, lambda: {"lr": RATES[kind]()})


OTHERS = [
    ("SGD", "momentum"),
    ("SGD", "weight_decay"),
    ("AdamW", "weight_decay"),
    ("AdamW", "eps"),
    ("RMSprop", "alpha"),
    ("Adagrad", "lr_decay"),
    ("Adadelta", "rho"),
    ("NAdam", "momentum_decay"),
    ("ASGD", "lambd"),
]


@pytest.mark.parametrize(
    ("name", "key", "kind"),
    [
        pytest.param(name, key, kind, marks=_unless(number % 2 == column))
        for number, (name, key) in enumerate(OTHERS)
        for column, kind in enumerate((torch.tensor, np.float32))
    ],
)
def test_other_hyperparameters_may_be_such_numbers(
    servers: ParameterServerStrategy, name: str, key: str, kind: Callable[[float], Any]
) -> None:
    for strategy in (servers, MirroredStrategy(["CPU:0", "CPU:1"])):
        trains_like_torch(strategy, name, False, lambda: {"lr": 0.1, key: kind(0.3)})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("SGD", {"lr": np.array([0.1])}),
        ("Adamax", {"betas": (np.float32(0.9), 0.999)}),
        ("SGD", {"lr": np.uint8(1)}),
        ("SGD", {"lr": np.longdouble(0.1)}),
        ("Rprop", {"step_sizes": (torch.tensor(1e-6), 50.0)}),
    ],
)
def test_what_torch_would_compute_otherwise_with_is_refused(
    servers: ParameterServerStrategy, name: str, values: dict[str, Any]
) -> None:
    """At the construction, and in a step, under every strategy."""
    (key,), cls = values, cast("Any", OPTIMIZERS[name].cls)
    for strategy in (servers, MirroredStrategy(["CPU:0", "CPU:1"])):
        with strategy.scope():
            module = Tables(False)
        with pytest.raises(InvalidTypeError, match=f"hyperparameter '{key}'"):
            DistributedOptimizer(cls(module.parameters(), **values))
        optimizer = DistributedOptimizer(cls(module.parameters()))
        before = [parameter.detach().clone() for parameter in module.parameters()]
        with pytest.raises(InvalidTypeError, match=f"hyperparameter '{key}'"):
            trained_once(strategy, module, optimizer, values)
        assert all(map(torch.equal, module.parameters(), before))


def trained_once(
    strategy: Strategy, module: Tables, optimizer: Optimizer, values: dict[str, Any]
) -> None:
    optimizer.param_groups[0].update(values)

    def step() -> None:
        module(0).backward()
        optimizer.step()

    strategy.run(step)
