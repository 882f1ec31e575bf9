"""Embeddings with sparse gradients in one process, beside plain PyTorch and beside a server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, InvalidArgumentError, ParameterServerStrategy
from stratagem._local.one_process import OneProcessStrategy
from stratagem.nn import Embedding, EmbeddingBag
from tests.client.clusters import running

# torch says so of its own sparse steps, once a process.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

ROWS = 50
Make = Callable[[Any], torch.optim.Optimizer]

STRATEGIES: dict[str, Callable[[], OneProcessStrategy]] = {
    "servers": ParameterServerStrategy,
    "one device": lambda: stratagem.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: stratagem.MirroredStrategy(["CPU:0"]),
    "central": lambda: stratagem.CentralStorageStrategy(["CPU:0"]),
}

AS_TORCH: dict[str, Make] = {
    "SparseAdam": lambda all_: torch.optim.SparseAdam(all_, lr=0.1),
    "SGD": lambda all_: torch.optim.SGD(all_, lr=0.1),
    "Adagrad": lambda all_: torch.optim.Adagrad(all_, lr=0.1, initial_accumulator_value=0.1),
    "RowWiseAdagrad": lambda all_: stratagem.optim.RowWiseAdagrad(all_, lr=0.1),
}
"""What torch steps by sparse gradients."""

BY_ROWS: dict[str, Make] = {
    "Adam": lambda all_: torch.optim.Adam(all_, lr=0.1, amsgrad=True),
    "AdamW": lambda all_: torch.optim.AdamW(all_, lr=0.1, weight_decay=0.1),
    "RMSprop": lambda all_: torch.optim.RMSprop(all_, lr=0.01, momentum=0.5, centered=True),
    "SGD with decay": lambda all_: torch.optim.SGD(all_, lr=0.1, weight_decay=0.1),
    "Adagrad with decay": lambda all_: torch.optim.Adagrad(
        all_, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.1
    ),
    "SGD with momentum": lambda all_: torch.optim.SGD(
        all_, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01
    ),
}
"""What torch steps by dense gradients alone; servers step rows."""


class Bags(nn.Module):
    def __init__(self, embedding: Any, bag: Any, **options: Any) -> None:
        super().__init__()
        self.one = embedding(ROWS, 4, **options)
        self.bag = bag(ROWS, 4, mode="sum", **options)

    def begin(self) -> None:
        """Give it values, which no initialiser of torch has."""
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(ROWS, 4, generator=generator))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        answers: torch.Tensor = self.one(ids) + self.bag(torch.stack([ids, ids // 2], 1))
        return answers


def train(
    model: nn.Module, step: Callable[[torch.Tensor], object], steps: range = range(6)
) -> list[torch.Tensor]:
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        step(torch.randint(0, ROWS, (12,), generator=generator))
    return [one.detach().clone() for one in model.parameters()]


class Training:
    def __init__(self, strategy: OneProcessStrategy, make: Make) -> None:
        with strategy.scope():
            self.model = Bags(Embedding, EmbeddingBag)
        self.model.begin()
        self.strategy = strategy
        self.optimizer = DistributedOptimizer(make(self.model.parameters()))

    def go(self, steps: range = range(6)) -> list[torch.Tensor]:
        def step(ids: torch.Tensor) -> None:
            self.optimizer.zero_grad()
            (self.model(ids) - 1).square().sum().backward()
            self.optimizer.step()

        return train(self.model, lambda ids: self.strategy.run(step, args=(ids,)), steps)


def plain(make: Make) -> list[torch.Tensor]:
    model = Bags(nn.Embedding, nn.EmbeddingBag, sparse=True)
    model.begin()
    optimizer = make(model.parameters())

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad()
        (model(ids) - 1).square().sum().backward()
        optimizer.step()

    return train(model, step)


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", AS_TORCH)
def test_what_torch_steps_is_as_in_plain_pytorch_to_the_bit(strategy: str, optimizer: str) -> None:
    make = AS_TORCH[optimizer]
    assert_equal(Training(STRATEGIES[strategy](), make).go(), plain(make))


@pytest.mark.parametrize("optimizer", BY_ROWS)
def test_what_torch_refuses_steps_rows_as_a_server_does_to_the_bit(optimizer: str) -> None:
    make = BY_ROWS[optimizer]
    with running(1) as cluster, cluster.strategy() as strategy:
        there = Training(strategy, make).go()
    for alone in STRATEGIES.values():
        assert_equal(Training(alone(), make).go(), there)
    with pytest.raises(RuntimeError, match="sparse"):
        plain(make)


def test_momentum_is_that_of_servers_where_there_could_be_some() -> None:
    """Elsewhere that of torch, which also moves rows that an earlier batch had."""
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    with running(1) as cluster, cluster.strategy() as strategy:
        assert_equal(Training(ParameterServerStrategy(), make).go(), Training(strategy, make).go())
    assert_equal(Training(stratagem.OneDeviceStrategy("CPU:0"), make).go(), plain(make))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", ["Adam", "SGD with momentum", "momentum"])
def test_state_of_rows_is_saved_and_restored(strategy: str, optimizer: str, tmp_path: Path) -> None:
    make = BY_ROWS.get(optimizer, partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    first = Training(STRATEGIES[strategy](), make)
    first.go(range(3))
    first.strategy.save(tmp_path / "run")
    second = Training(STRATEGIES[strategy](), make)
    second.strategy.restore(tmp_path / "run").assert_consumed()
    # A file has torch's sparse momentum as a dense one, which adds up in another order.
    torch.testing.assert_close(second.go(range(3, 6)), first.go(range(3, 6)))


def test_what_steps_no_rows_is_refused_by_name_and_changes_nothing() -> None:
    make = partial(torch.optim.NAdam, lr=0.1)
    for alone in STRATEGIES.values():
        training = Training(alone(), make)
        before = [one.detach().clone() for one in training.model.parameters()]
        with pytest.raises(InvalidArgumentError, match="NAdam cannot step the rows"):
            training.go()
        assert_equal([one.detach() for one in training.model.parameters()], before)


def test_copies_of_two_replicas_step_the_same_rows() -> None:
    stratagem.config.set_logical_cpus(2)
    strategy = stratagem.MirroredStrategy(["CPU:0", "CPU:1"])
    training = Training(strategy, BY_ROWS["Adam"])
    before = training.model.get_parameter("one.weight").detach().clone()

    def step(ids: torch.Tensor) -> None:
        training.optimizer.zero_grad()
        training.model(ids).sum().backward()
        training.optimizer.step()

    for batch in strategy.experimental_distribute_dataset([torch.tensor([3, 5, 7, 5])]):
        strategy.run(step, args=(batch,))
    changed = (training.model.get_parameter("one.weight") != before).any(1)
    assert changed.nonzero().flatten().tolist() == [3, 5, 7]
