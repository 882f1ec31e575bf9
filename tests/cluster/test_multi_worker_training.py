"""Training the same model on workers without servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    PerReplica,
    config,
)
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from tests.cluster.two_workers import on_two_workers, replica, worker

pytestmark = pytest.mark.cluster

ROWS = torch.arange(24, dtype=torch.float32).reshape(8, 3) / 10
Parameters = list[torch.Tensor]


def train(strategy: stratagem.Strategy, steps: int = 3) -> Parameters:
    """Return the parameters after some steps; each replica takes two rows."""
    torch.manual_seed(worker(strategy))
    with strategy.scope():
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        for parameter in module.parameters():
            nn.init.constant_(parameter, 0.1)
    optimizer = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))

    def step() -> None:
        optimizer.zero_grad()
        rows = ROWS[2 * replica() : 2 * replica() + 2]
        (module(rows) - rows.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()

    for _ in range(steps):
        strategy.run(step)
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_one_replica_in_each_worker_needs_no_run() -> None:
    def looped(strategy: MultiWorkerMirroredStrategy) -> Parameters:
        rows = ROWS.chunk(2)[worker(strategy)]
        with strategy.scope():
            module = nn.Linear(3, 1)
            nn.init.constant_(module.weight, 0.1)
            nn.init.zeros_(module.bias)
        adam = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
        for _ in range(5):
            adam.zero_grad()
            (module(rows) - rows.sum(1, keepdim=True)).pow(2).mean().backward()
            adam.step()
        return [parameter.detach().clone() for parameter in module.parameters()]

    first, second = on_two_workers(looped, cpus=1)
    assert all(map(torch.equal, first, second))
    alone = nn.Linear(3, 1)
    nn.init.constant_(alone.weight, 0.1)
    nn.init.zeros_(alone.bias)
    adam = torch.optim.Adam(alone.parameters(), lr=0.1)
    for _ in range(5):
        adam.zero_grad()
        (alone(ROWS) - ROWS.sum(1, keepdim=True)).pow(2).mean().backward()
        adam.step()
    for together, single in zip(first, alone.parameters(), strict=True):
        torch.testing.assert_close(together, single.detach())


def test_all_workers_have_the_same_bits_and_those_of_one_process_nearly() -> None:
    first, second = on_two_workers(train)
    assert all(map(torch.equal, first, second))
    config.set_logical_cpus(4)
    try:
        alone = train(MirroredStrategy())
    finally:
        config.set_logical_cpus(1)
    for together, single in zip(first, alone, strict=True):
        torch.testing.assert_close(together, single)


def test_a_worker_without_data_steps_along() -> None:
    def sparse(strategy: stratagem.Strategy) -> Parameters:
        with strategy.scope():
            table = nn.Embedding(5, 2, sparse=True)
            head, unused = nn.Linear(2, 1), nn.Linear(2, 1)
        parameters = [*table.parameters(), *head.parameters(), *unused.parameters()]
        optimizer = DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
        before = [parameter.detach().clone() for parameter in parameters]

        def step() -> None:
            # Only the two replicas of the first worker have a gradient.
            if replica() < 2:
                head(table(torch.tensor([replica(), 3]))).sum().backward()
            optimizer.step()

        strategy.run(step)
        return [p.detach() - q for p, q in zip(parameters, before, strict=True)]

    first, second = on_two_workers(sparse)
    assert all(map(torch.equal, first, second))
    table, _, bias, *unused = first
    assert table.abs().sum(1).bool().tolist() == [True, True, False, True, False]
    # The mean is one over those replicas that took part.
    torch.testing.assert_close(bias, torch.tensor([-2.0]))
    assert not any(delta.any() for delta in unused)


@pytest.mark.parametrize("cpus", [1, 2])
def test_replicas_without_rows_do_not_count(cpus: int) -> None:
    def train(strategy: stratagem.Strategy) -> float:
        with strategy.scope():
            module = nn.Linear(1, 1)
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
        before = module.bias.item()

        def step(rows: torch.Tensor) -> None:
            module(rows).mean().backward()
            optimizer.step()

        # One row: only the first replica of the first worker has data.
        for rows in strategy.experimental_distribute_dataset([torch.ones(1, 1)]):
            strategy.run(step, (rows,))
        return module.bias.item() - before

    assert on_two_workers(train, cpus) == [pytest.approx(-1.0)] * 2


def _with_rate(strategy: stratagem.Strategy, module: nn.Module) -> None:
    rate = 0.1 * (1 + worker(strategy))
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=rate))
    _step(strategy, module, optimizer)


def _with_write(strategy: stratagem.Strategy, module: nn.Module) -> None:
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))
    if worker(strategy):
        nn.init.zeros_(next(module.parameters()))
    _step(strategy, module, optimizer)


def _with_write_in_replica(strategy: stratagem.Strategy, module: nn.Module) -> None:
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))

    def fn() -> None:
        module(torch.ones(1, 2)).sum().backward()
        if worker(strategy):
            nn.init.zeros_(next(module.parameters()))
        optimizer.step()

    strategy.run(fn)


def _step(strategy: stratagem.Strategy, module: nn.Module, optimizer: DistributedOptimizer) -> None:
    def fn() -> None:
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    strategy.run(fn)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_with_rate, "task:0 has lr=0.1, .*task:1 has lr=0.2"),
        (_with_write, "was written by hand, and not alike: .* has written nothing"),
        (_with_write_in_replica, "was written by hand, and not alike: .* has written nothing"),
    ],
)
def test_steps_that_would_not_be_the_same_are_refused(
    step: Callable[[stratagem.Strategy, nn.Module], None], message: str
) -> None:
    def build(strategy: stratagem.Strategy) -> None:
        with strategy.scope():
            module = nn.Linear(2, 1)
        before = module.weight.detach().clone()
        with pytest.raises(InvalidArgumentError, match=message):
            step(strategy, module)
        assert worker(strategy) or torch.equal(module.weight, before)

    on_two_workers(build)


@pytest.mark.parametrize("in_scope", [True, False])
def test_optimizers_that_are_none_of_torchs_are_refused(in_scope: bool) -> None:
    def loop(module: nn.Module) -> None:
        for _ in range(3):
            module(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                next(module.parameters()).sub_(0.1)

    def train(strategy: MultiWorkerMirroredStrategy) -> None:
        with pytest.raises(FailedPreconditionError, match="none of torch's"):
            with strategy.scope():
                module = nn.Linear(2, 1, bias=False)
                if in_scope:
                    loop(module)
            loop(module)

    on_two_workers(train, cpus=1)


def test_the_same_state_may_be_loaded_everywhere() -> None:
    def load(strategy: MultiWorkerMirroredStrategy) -> Any:
        with strategy.scope():
            module = nn.Linear(2, 1, bias=False)
        module.load_state_dict({"weight": torch.tensor([[3.0, 4.0]])})
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
        _step(strategy, module, optimizer)
        return module.weight.tolist()

    assert on_two_workers(load) == [[[2.0, 3.0]]] * 2


def test_checkpoints_hold_what_all_workers_have() -> None:
    def save(strategy: MultiWorkerMirroredStrategy) -> Any:
        with strategy.scope():
            seen = stratagem.Variable(
                0,
                name="seen",
                synchronization=stratagem.VariableSynchronization.ON_READ,
                aggregation=stratagem.VariableAggregation.SUM,
            )
        strategy.run(lambda rows: seen.assign_add(rows), (PerReplica([1, 2]),))
        return strategy.state_dict()["seen"].item()

    assert on_two_workers(save) == [6, 6]
