"""Gradients that go to the servers while backward goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from tests.client.clusters import Cluster, running
from tests.client.networks import equal
from tests.full import a_few
from tests.waiting import eventually

Train = Callable[[ParameterServerStrategy, bool], nn.Module]

WIDTH = 600  # so that a layer is more than a bucket


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2) as cluster:
        yield cluster


class Broken(torch.autograd.Function):
    """Computes nothing, and fails in backward."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("in the midst of backward")


class Training:
    """A network of two layers, which are a bucket each, with an unused third.

    Args:
        strategy: Where it is trained.
        overlap: Whether with overlap.
        settings: Further ones of the optimizer.
    """

    def __init__(self, strategy: ParameterServerStrategy, overlap: bool, **settings: Any) -> None:
        self.strategy = strategy
        # Workers are threads here, and share torch's own generator.
        generator = torch.Generator().manual_seed(7)
        with strategy.scope():
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.unused = nn.Linear(2, 2)
            self.layers = nn.ModuleList([self.first, self.second, self.unused])
            for parameter in self.layers.parameters():
                nn.init.uniform_(parameter, -0.1, 0.1, generator=generator)
        adam = torch.optim.Adam(self.layers.parameters(), lr=0.01)
        self.optimizer = DistributedOptimizer(adam, overlap=overlap, **settings)

    def loss(self) -> torch.Tensor:
        features = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)
        loss: torch.Tensor = self.second(self.first(features).tanh()).square().mean()
        return loss

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def train(self, steps: int = 3) -> nn.Module:
        for _ in range(steps):
            self.strategy.run(self.step)
        self.strategy.barrier("trained")
        return self.layers


def trained(train: Train, overlap: bool, num_workers: int = 1, **settings: Any) -> nn.Module:
    """What comes of training on servers of its own."""
    with running(2, num_workers) as cluster:
        return cluster.run(lambda strategy, _: train(strategy, overlap), **settings)[0]


def both(train: Train, **settings: Any) -> list[nn.Module]:
    """What comes of training without and with overlap."""
    return [trained(train, overlap, **settings) for overlap in (False, True)]


@a_few("compression", [None, "bf16", "int8"], "what is sent does not depend on when")
def test_overlap_trains_to_the_same_bytes(compression: str | None) -> None:

    def train(strategy: ParameterServerStrategy, overlap: bool) -> nn.Module:
        return Training(strategy, overlap, compression=compression).train()

    without, overlapped = both(train)
    assert equal(without, overlapped)


@a_few("consistency", ["sync", "bounded"], "overlap sends, and the mode answers")
def test_overlap_goes_with_every_consistency(consistency: str) -> None:
    """Two workers whose gradients are equal, so that their order does not matter."""
    without, overlapped = both(
        lambda strategy, overlap: Training(strategy, overlap).train(),
        num_workers=2 if consistency == "sync" else 1,
        consistency=consistency,
    )
    assert equal(without, overlapped)


def test_overlap_goes_with_parameters_that_are_divided() -> None:
    without, overlapped = both(
        lambda strategy, overlap: Training(strategy, overlap).train(),
        variable_partitioner=FixedShardsPartitioner(2),
    )
    assert equal(without, overlapped)


def test_gradients_are_sent_before_the_step(cluster: Cluster) -> None:
    """All but what is too small for a message of its own."""
    with cluster.strategy() as strategy:
        training = Training(strategy, overlap=True)
        layer_bytes = 4 * WIDTH * WIDTH

        def sent_bytes() -> int:
            return strategy.traffic().sent_bytes

        def step() -> None:
            before = sent_bytes()
            training.loss().backward()
            eventually(lambda: sent_bytes() > before + 2 * layer_bytes)
            before = sent_bytes()
            training.optimizer.step()
            assert sent_bytes() < before + layer_bytes / 2

        strategy.run(step)


def test_a_backward_that_fails_leaves_nothing_behind(cluster: Cluster) -> None:
    """And the next step is as if it had not been."""
    with cluster.strategy() as strategy:
        training = Training(strategy, overlap=True)

        def fail() -> None:
            features = torch.ones(1, WIDTH)
            between = Broken.apply(training.first(features))  # type: ignore[no-untyped-call]
            output = training.second(between)
            output.sum().backward()

        versions = strategy.extended.variable_placements()
        with pytest.raises(ArithmeticError, match="in the midst"):
            strategy.run(fail)
        assert training.second.weight.grad is not None
        before = [value.clone() for value in training.layers.parameters()]
        strategy.refresh()
        after = list(training.layers.parameters())
        assert all(map(torch.equal, before, after))
        assert strategy.extended.variable_placements() == versions
        overlapped = training.train()
    with running(2) as other, other.strategy() as strategy:
        assert equal(Training(strategy, overlap=False).train(), overlapped)


def clip(training: Training) -> None:
    training.loss().backward()
    nn.utils.clip_grad_norm_(training.layers.parameters(), 1e-3)


def accumulate(training: Training) -> None:
    training.loss().backward()
    training.loss().backward()


def scale(training: Training) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(training.loss()).backward()
    scaler.step(training.optimizer)


def unscale(training: Training) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(training.loss()).backward()
    scaler.unscale_(training.optimizer)


@a_few(
    "change",
    [clip, accumulate, scale, unscale],
    "any change would be seen in the bytes that are sent",
)
def test_gradients_are_not_changed_once_they_are_sent(
    cluster: Cluster, change: Callable[[Training], None]
) -> None:
    with cluster.strategy() as strategy:
        training = Training(strategy, overlap=True)

        def step() -> None:
            change(training)
            training.optimizer.step()

        before = training.first.weight.clone()
        with pytest.raises(FailedPreconditionError, match=r"(?s)sent.*overlap"):
            strategy.run(step)
        strategy.refresh()
        assert torch.equal(training.first.weight, before)
        training.train(1)
        assert not torch.equal(training.first.weight, before)


def test_what_is_cleared_by_other_hands_is_not_applied(cluster: Cluster) -> None:
    """As by `module.zero_grad()` in the place of `optimizer.zero_grad()`."""
    with cluster.strategy() as strategy:
        training = Training(strategy, overlap=True)

        def step() -> None:
            (3 * training.loss()).backward()
            training.layers.zero_grad()
            training.loss().backward()
            training.optimizer.step()

        strategy.run(step)
        strategy.refresh()
    with running(2) as other, other.strategy() as strategy:
        assert equal(Training(strategy, overlap=False).train(1), training.layers)


@pytest.mark.parametrize(
    "limits", [{"clip_norm": 1.0}, {"clip_value": 1.0}, {"on_nonfinite": "reject"}]
)
def test_limits_exclude_overlap(cluster: Cluster, limits: dict[str, Any]) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            module = nn.Linear(1, 1)
        sgd = torch.optim.SGD(module.parameters())
        with pytest.raises(InvalidArgumentError, match="overlap=True"):
            DistributedOptimizer(sgd, overlap=True, **limits)


def test_several_replicas_exclude_overlap(cluster: Cluster) -> None:
    stratagem.config.set_logical_cpus(2)
    try:
        with cluster.strategy(num_replicas_per_worker=2) as strategy:
            with strategy.scope():
                module = nn.Linear(1, 1)
            sgd = torch.optim.SGD(module.parameters())
            with pytest.raises(InvalidArgumentError, match="one replica"):
                DistributedOptimizer(sgd, overlap=True)
    finally:
        stratagem.config.set_logical_cpus(1)


def test_overlap_means_nothing_where_nothing_is_sent() -> None:
    module = nn.Linear(1, 1)
    sgd = torch.optim.SGD(module.parameters(), lr=0.5)
    optimizer = DistributedOptimizer(sgd, overlap=True)
    before = module.bias.item()
    module(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert module.bias.item() == before - 0.5
