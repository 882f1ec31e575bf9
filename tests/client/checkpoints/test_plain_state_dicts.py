"""Checkpoints as programs of PyTorch write them, of what servers hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.partitioners import FixedShardsPartitioner
from tests.checkpoints import reloaded
from tests.client.clusters import Cluster, running
from tests.full import a_few
from tests.nests import same_bytes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=3, num_workers=2) as cluster:
        yield cluster


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Linear(9, 1))


def _locally(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    step(*args)


class Training:
    """A model, an optimizer and a schedule, under a strategy or plain."""

    def __init__(
        self,
        strategy: ParameterServerStrategy | None = None,
        model: nn.Module | None = None,
    ) -> None:
        with strategy.scope() if strategy else nullcontext():
            self.model = model or network()
        inner = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.optimizer = DistributedOptimizer(inner) if strategy else inner
        self._run: Callable[..., Any] = strategy.run if strategy else _locally
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def train(self, steps: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            self._run(self._step, args=(torch.randn(8, 3, generator=generator),))
            self.schedule.step()

    def _step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])


def dividing(cluster: Cluster, shards: int, **settings: Any) -> ParameterServerStrategy:
    partitioner = FixedShardsPartitioner(shards)
    return cluster.strategy(variable_partitioner=partitioner, **settings)


@a_few(
    "before,after",
    [pytest.param(3, 2, marks=pytest.mark.spec("SHV-32")), (1, 1), (1, 3)],
    "the file has no servers",
)
def test_training_goes_on_from_a_file_of_torch(before: int, after: int) -> None:
    """As it does in plain torch, and from there, whatever is divided."""
    plain = Training()
    plain.train(3, seed=1)
    with running(3) as cluster, dividing(cluster, before) as strategy:
        first = Training(strategy)
        first.train(3, seed=1)
        saved = reloaded(first.state())
        assert same_bytes(saved["model"], plain.model.state_dict())
        assert same_bytes(saved["optimizer"], plain.optimizer.state_dict())
    again = Training()
    again.load(reloaded(saved))  # torch goes on with the tensors that it is given
    again.train(3, seed=2)
    with running(2) as cluster, dividing(cluster, after) as strategy:
        second = Training(strategy)
        second.train(2, seed=3)  # what is loaded replaces what there is
        second.load(saved)
        second.train(3, seed=2)
        assert same_bytes(second.state(), again.state())


def test_training_together_goes_on_as_well() -> None:
    plain = Training()
    plain.train(3, seed=1)
    saved = reloaded(plain.state())
    plain.train(3, seed=2)
    settings = {"consistency": "sync"}
    with running(2) as cluster, dividing(cluster, 2, **settings) as strategy:
        mine = Training(strategy)
        mine.train(1, seed=3)
        mine.load(saved)
        mine.train(3, seed=2)
        assert same_bytes(mine.state(), plain.state())


def test_parameters_may_be_assigned_in_the_scope(cluster: Cluster) -> None:
    """As in torch, optimizers are made for the new ones."""

    def ones() -> dict[str, torch.Tensor]:
        return {name: torch.ones_like(v) for name, v in network().state_dict().items()}

    with dividing(cluster, 2) as strategy:
        with strategy.scope():
            model = network()
            model.load_state_dict(ones(), assign=True)
        plain = network()
        plain.load_state_dict(ones(), assign=True)
        mine, theirs = Training(strategy, model), Training(None, plain)
        for training in (mine, theirs):
            training.train(2, seed=1)
        assert same_bytes(mine.state(), theirs.state())


def test_the_chief_loads_for_all(cluster: Cluster) -> None:
    with cluster.strategy() as strategy, cluster.strategy(1) as other:
        mine, theirs = Training(strategy), Training(other)
        saved = reloaded(mine.state())
        mine.train(1, seed=1)
        mine.load(saved)
        strategy.refresh()
        assert same_bytes(theirs.state(), saved)
        theirs.load(saved)
        assert same_bytes(theirs.state(), saved)


def test_the_strategy_points_to_them(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        for call in (strategy.state_dict, lambda: strategy.load_state_dict({})):
            with pytest.raises(NotImplementedError, match=r"optimizer\.state_dict\(\).*save\(\)"):
                call()
