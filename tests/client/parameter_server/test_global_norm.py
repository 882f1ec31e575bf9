"""Clipping by the norm of what all workers contribute and several servers add up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    NonFiniteGradientError,
    ParameterServerStrategy,
)
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.pairs import Pair, after, pairs
from tests.full import a_few

NAN = float("nan")
STEPS = 5
CLIP = 0.05
ROWS = 12


class Model(nn.Module):
    """Rows that some batches look up, and dense layers."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 3, sparse=sparse)
        self.hidden = nn.Linear(3, 4)
        self.output = nn.Linear(4, 1)
        nn.init.constant_(self.rows.weight, 0.25)
        generator = torch.Generator().manual_seed(1)
        for layer in (self.hidden, self.output):
            nn.init.uniform_(layer.weight, -0.5, 0.5, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.output(self.hidden(self.rows(rows)).tanh())
        return (loss - 3).pow(2).mean()


def batch(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(ROWS, (8,), generator=generator)


def values_of(model: Model) -> list[torch.Tensor]:
    dense = [*model.hidden.parameters(), *model.output.parameters()]
    return [each.detach().clone() for each in (model.rows(torch.arange(ROWS)), *dense)]


def as_bytes(values: Sequence[torch.Tensor]) -> list[bytes]:
    return [value.numpy().tobytes() for value in values]


def train(sparse: bool, strategy: ParameterServerStrategy, worker: int) -> list[torch.Tensor]:
    with strategy.scope():
        model = Model(sparse)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = DistributedOptimizer(sgd, clip_norm=CLIP)

    def step(rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(rows).backward()
        optimizer.step()

    for number in range(STEPS):
        strategy.run(step, args=(batch(number).chunk(2)[worker],))
    strategy.barrier()
    return values_of(model)


def trained_locally() -> list[torch.Tensor]:
    model = Model(sparse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(STEPS):
        optimizer.zero_grad()
        model(batch(number)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return values_of(model)


@a_few("sparse", [False, True], "rows are squared and added as dense values are")
@pytest.mark.parametrize("shards", [1, 2])
def test_two_workers_equal_plain_clipping_on_the_joined_batch(sparse: bool, shards: int) -> None:
    partitioner = stratagem.partitioners.FixedShardsPartitioner(shards)
    with running(num_servers=3, num_workers=2) as cluster:
        first, second = cluster.run(
            partial(train, sparse), consistency="sync", variable_partitioner=partitioner
        )
    assert as_bytes(first) == as_bytes(second)
    for ours, theirs in zip(first, trained_locally(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.fixture
def two_servers() -> Iterator[Cluster]:
    with running(num_servers=2, num_workers=2) as cluster:
        yield cluster


def test_the_order_of_arrival_leaves_no_trace() -> None:
    found = after(3)
    assert found == pytest.approx([-1.8, -2.4], rel=1e-5)
    assert after(3, order=(1, 0)) == found


def test_steps_of_one_run_are_finished_in_their_order(two_servers: Cluster) -> None:
    with ExitStack() as stack:
        workers = pairs(stack, two_servers)

        def steps(worker: Pair) -> None:
            for _ in range(3):
                worker.step()

        with ThreadPoolExecutor(2) as threads:
            runs = [threads.submit(worker.strategy.run, steps, (worker,)) for worker in workers]
            for run in runs:
                run.result()
        assert workers[0].values() == pytest.approx([-1.8, -2.4], rel=1e-5)


def test_a_step_needs_no_more_workers_than_it_says(two_servers: Cluster) -> None:
    with ExitStack() as stack:
        one = stratagem.consistency.Sync(1)
        first, second = (
            Pair(stack.enter_context(two_servers.strategy(number, consistency=one)))
            for number in range(2)
        )

        def step() -> None:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(first.run).result()
            second.step()

        second.strategy.run(step)
        assert first.values() == pytest.approx([-0.6, -0.8], rel=1e-5)
        assert second.values() == first.values()
        report = first.strategy.consistency_report()["SGD"]
        assert [worker.dropped for worker in report.workers.values()] == [0, 1]


def test_an_overflow_that_one_server_sees_drops_the_step_on_all(
    two_servers: Cluster,
) -> None:
    with ExitStack() as stack:
        workers = pairs(stack, two_servers, on_nonfinite="reject", reduce_op="sum")
        for gradients in ((3e38, 4.0), ()):
            for worker in workers:
                worker.run(*gradients)
        for worker in workers:
            assert worker.values() == pytest.approx([-0.6, -0.8], rel=1e-5)
            assert worker.optimizer.rejected_steps == 1


@pytest.mark.parametrize("spoilt", [3e38, NAN])
def test_a_step_that_is_not_finite_fails_on_all_servers(
    two_servers: Cluster, spoilt: float
) -> None:
    with ExitStack() as stack:
        first, second = pairs(stack, two_servers, on_nonfinite="raise", reduce_op="sum")
        first.run(3e38)
        with pytest.raises(NonFiniteGradientError) as caught:
            second.run(spoilt)
        assert caught.value.variable == "weight"
        with pytest.raises(NonFiniteGradientError):
            first.values()


@pytest.mark.parametrize("limits", [{"on_nonfinite": "zero"}, {"clip_value": 1e9}])
def test_other_limits_come_before_that_of_the_norm(
    two_servers: Cluster, limits: dict[str, Any]
) -> None:
    with ExitStack() as stack:
        for worker in (workers := pairs(stack, two_servers, **limits)):
            worker.run(math.inf)
        weight, bias = workers[0].values()
    expected = (0.0, -1.0) if "on_nonfinite" in limits else (-1.0, 0.0)
    assert (weight, bias) == pytest.approx(expected, abs=1e-5)
