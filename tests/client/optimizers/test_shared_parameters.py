"""Several optimizers over the same parameters: each steps them, as with torch, or none may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import stratagem
from stratagem import (
    DistributedOptimizer,
    FailedPreconditionError,
    HybridOptimizer,
    LocalSteps,
    ParameterServerStrategy,
    Strategy,
)
from tests.client.clusters import running

STEPS = 4

Makers = Sequence[Callable[[list[nn.Parameter]], Optimizer]]

_MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)

PAIRS: dict[str, Makers] = {
    "two of one class": [_MOMENTUM, partial(SGD, lr=0.05)],
    "two classes": [_MOMENTUM, partial(Adam, lr=0.02)],
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)
        self.layer = nn.Linear(3, 1)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters(), 1):
                values = torch.linspace(-1.0, number, parameter.numel())
                parameter.copy_(values.reshape(parameter.shape))

    def loss(self, step: int, replica: int) -> torch.Tensor:
        rows = torch.tensor([step, step + replica + 1, 2 * replica])
        found: torch.Tensor = torch.tanh(self.layer(self.table(rows))).square().mean()
        return found


def expected(makers: Makers, replicas: int) -> list[torch.Tensor]:
    """What plain torch makes of the mean of all replicas' losses."""
    model = Model()
    optimizers = [make(list(model.parameters())) for make in makers]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = [model.loss(step, replica) for replica in range(replicas)]
        torch.stack(losses).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return [one.detach() for one in model.parameters()]


def trained(strategy: Strategy, makers: Makers) -> list[torch.Tensor]:
    with strategy.scope():
        model = Model()
    optimizers = [DistributedOptimizer(make(list(model.parameters()))) for make in makers]

    def take(step: int) -> None:
        context = stratagem.get_replica_context()
        assert context is not None
        for optimizer in optimizers:
            optimizer.zero_grad()
        model.loss(step, int(context.replica_id_in_sync_group or 0)).backward()
        for optimizer in optimizers:
            optimizer.step()

    for step in range(STEPS):
        strategy.run(take, args=(step,))
    if isinstance(strategy, ParameterServerStrategy):
        strategy.refresh()
    return [one.detach().clone() for one in model.parameters()]


def assert_as_in_torch(found: Sequence[torch.Tensor], makers: Makers, replicas: int) -> None:
    for ours, theirs in zip(found, expected(makers, replicas), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: stratagem.OneDeviceStrategy("CPU:0"),
        lambda: stratagem.MirroredStrategy(["CPU:0", "CPU:1"]),
        stratagem.MultiWorkerMirroredStrategy,
        ParameterServerStrategy,
    ],
    ids=["one device", "mirrored", "multi-worker", "no cluster"],
)
def test_in_one_process_two_optimizers_step_one_after_the_other(
    make: Callable[[], Strategy], pair: str
) -> None:
    stratagem.config.set_logical_cpus(2)
    try:
        strategy = make()
        found = trained(strategy, PAIRS[pair])
        assert_as_in_torch(found, PAIRS[pair], strategy.num_replicas_in_sync)
    finally:
        stratagem.config.set_logical_cpus(1)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_on_servers_two_optimizers_step_one_after_the_other(consistency: str, pair: str) -> None:
    workers = 2 if consistency == "sync" else 1
    with running(2, workers) as cluster:
        each = cluster.run(lambda one, _: trained(one, PAIRS[pair]), consistency=consistency)
    for found in each:
        assert_as_in_torch(found, PAIRS[pair], workers)


def _distributed(model: nn.Linear) -> Optimizer:
    return DistributedOptimizer(SGD(model.parameters(), lr=0.1))


def _local(model: nn.Linear) -> Optimizer:
    return LocalSteps(SGD(model.parameters(), lr=0.1), every=2)


def _hybrid(model: nn.Linear) -> Optimizer:
    return HybridOptimizer(SGD(model.parameters(), lr=0.1))


def _around_another(model: nn.Linear) -> Optimizer:
    tables = DistributedOptimizer(SGD(model.parameters(), lr=0.1))
    return HybridOptimizer(SGD(model.parameters(), lr=0.1), tables=tables)


def _plain(model: nn.Linear) -> Optimizer:
    return SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "makers",
    [
        [_local, _local],
        [_local, _hybrid],
        [_local, _distributed],
        [_distributed, _local],
        [_local, _plain],
        [_plain, _local],
        [_hybrid, _hybrid],
        [_hybrid, _local],
        [_hybrid, _distributed],
        [_distributed, _hybrid],
        [_hybrid, _plain],
        [_plain, _hybrid],
        [_around_another],
    ],
    ids=lambda makers: " and ".join(one.__name__.strip("_") for one in makers),
)
def test_what_a_worker_trains_by_itself_no_other_optimizer_steps(
    makers: Sequence[Callable[[nn.Linear], Optimizer]],
) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = nn.Linear(2, 1)

        def take(optimizers: Sequence[Optimizer]) -> None:
            model(torch.ones(2)).backward()
            for optimizer in optimizers:
                optimizer.step()

        with pytest.raises(FailedPreconditionError, match="give each parameter to one optimizer"):
            strategy.run(take, args=([make(model) for make in makers],))


def test_an_optimizer_of_the_servers_may_have_trained_before_what_workers_train_now() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            model = nn.Linear(1, 1, bias=False)
        optimizers = [_distributed(model)]
        model.weight.grad = torch.ones(1, 1)
        before = float(model.weight.detach())
        optimizers[0].step()
        optimizers.append(_local(model))
        assert float(model.weight.detach()) == pytest.approx(before - 0.1)
        model.weight.grad = torch.ones(1, 1)
        optimizers[1].step()
        assert float(model.weight.detach()) == pytest.approx(before - 0.2)
