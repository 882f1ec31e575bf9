"""Clipping, and steps with gradients that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DistributedOptimizer,
    InvalidArgumentError,
    NonFiniteGradientError,
    ParameterServerStrategy,
    Strategy,
)
from tests.client.clusters import running

pytestmark = pytest.mark.usefixtures("four_cpus")

NAN = float("nan")
FIRST, SECOND = [3.0, -4.0], [[0.0, 12.0]]


class Pair(nn.Module):
    """Two parameters, which two servers would share."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2))
        self.second = nn.Parameter(torch.zeros(1, 2))


class Worker:
    """Subtracts gradients that a test gives."""

    def __init__(self, strategy: Strategy | None, **limits: Any) -> None:
        self.strategy = strategy
        with strategy.scope() if strategy else nullcontext():
            self.model = Pair()
        sgd = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.optimizer = DistributedOptimizer(sgd, **limits)

    def step(self, first: Sequence[float] = FIRST, second: Any = SECOND) -> None:
        def replica_step() -> None:
            self.model.first.grad = torch.tensor(first)
            self.model.second.grad = torch.tensor(second)
            self.optimizer.step()

        self.strategy.run(replica_step) if self.strategy else replica_step()

    def values(self) -> list[float]:
        """All four numbers, as the servers have them."""
        if isinstance(self.strategy, ParameterServerStrategy):
            self.strategy.refresh()
        flat = [each.detach().reshape(-1) for each in self.model.parameters()]
        found: list[float] = torch.cat(flat).tolist()
        return found


Program = Callable[[Strategy | None], list[float]]


def everywhere(program: Program) -> list[list[float]]:
    """What a program returns under several strategies and without one."""
    results = [program(None), program(ParameterServerStrategy())]
    results.append(program(stratagem.MirroredStrategy(["CPU:0", "CPU:1"])))
    with running(num_servers=2) as cluster, cluster.strategy() as strategy:
        results.append(program(strategy))
    for num_servers in (1, 2):
        with running(num_servers) as cluster:
            results += cluster.run(lambda s, _: program(s), consistency="sync")
    return results


def test_all_gradients_are_clipped_by_their_norm() -> None:
    def program(strategy: Strategy | None) -> list[float]:
        worker = Worker(strategy, clip_norm=6.5)
        worker.step()
        return worker.values()

    expected = [-1.5, 2.0, 0.0, -6.0]  # 3, -4, 12 have the norm 13
    for found in everywhere(program):
        assert found == pytest.approx(expected, rel=1e-5)


def test_each_element_is_clipped_by_its_magnitude() -> None:
    def program(strategy: Strategy | None) -> list[float]:
        worker = Worker(strategy, clip_value=3.5)
        worker.step()
        return worker.values()

    for found in everywhere(program):
        assert found == [-3.0, 3.5, 0.0, -3.5]


def test_a_step_that_is_not_finite_is_dropped_whole() -> None:
    def program(strategy: Strategy | None) -> list[float]:
        worker = Worker(strategy, on_nonfinite="reject")
        worker.step([1.0, 1.0], [[0.0, -math.inf]])
        worker.step()
        values = worker.values()
        assert worker.optimizer.rejected_steps == 1
        return values

    for found in everywhere(program):
        assert found == [-3.0, 4.0, 0.0, -12.0]


def test_zero_may_stand_for_what_is_not_finite() -> None:
    def program(strategy: Strategy | None) -> list[float]:
        worker = Worker(strategy, on_nonfinite="zero")
        worker.step([NAN, 1.0], [[0.0, math.inf]])
        assert worker.optimizer.rejected_steps == 0
        return worker.values()

    for found in everywhere(program):
        assert found == [0.0, -1.0, 0.0, 0.0]


def test_a_step_that_is_not_finite_may_be_an_error() -> None:
    def program(strategy: Strategy | None) -> list[float]:
        worker = Worker(strategy, on_nonfinite="raise")
        with pytest.raises(NonFiniteGradientError, match="has NaN or infinities"):
            worker.step([1.0, NAN])
        with torch.no_grad():
            return [each.detach().sum().item() for each in worker.model.parameters()]

    assert everywhere(program) == [[0.0, 0.0]] * 6


def test_by_default_nan_is_a_number_like_any_other() -> None:
    def program(strategy: Strategy | None) -> list[float]:
        worker = Worker(strategy)
        worker.step([1.0, NAN])
        return worker.values()

    for found in everywhere(program):
        assert math.isnan(found[1])
        assert found[0] == -1.0


def test_all_workers_hear_of_a_step_that_one_has_spoilt() -> None:
    def program(strategy: ParameterServerStrategy, number: int) -> Any:
        worker = Worker(strategy, on_nonfinite="reject", reduce_op="sum")
        worker.step([1.0, NAN if number else 1.0])
        worker.step()
        return worker.values(), worker.optimizer.rejected_steps

    with running(num_servers=2, num_workers=2) as cluster:
        results = cluster.run(program, consistency="sync")
    assert results == [([-6.0, 8.0, 0.0, -24.0], 1)] * 2


def test_a_step_that_one_worker_has_spoilt_may_fail_for_all() -> None:
    def program(strategy: ParameterServerStrategy, number: int) -> str:
        worker = Worker(strategy, on_nonfinite="raise")
        with pytest.raises(NonFiniteGradientError) as caught:
            worker.step([1.0, NAN if number else 1.0])
            worker.step()
        return caught.value.variable

    with running(num_servers=2, num_workers=2) as cluster:
        assert cluster.run(program, consistency="sync") == ["first"] * 2


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_rows_that_repeat_are_clipped_as_their_sum(consistency: str) -> None:
    with (
        running(num_servers=1) as cluster,
        cluster.strategy(consistency=consistency) as strategy,
    ):
        with strategy.scope():
            table = nn.Embedding(4, 1, sparse=True)
            nn.init.zeros_(table.weight)
        sgd = torch.optim.SGD(table.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, clip_value=1.5)

        def step() -> None:
            table(torch.tensor([2, 0, 2])).sum().backward()
            optimizer.step()

        strategy.run(step)
        strategy.refresh()
        assert table.weight.detach().reshape(-1).tolist() == [-1.0, 0.0, -1.5, 0.0]


def test_what_is_no_limit_is_refused() -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    with pytest.raises(InvalidArgumentError, match="clip_norm"):
        DistributedOptimizer(sgd, clip_norm=-1.0)
    with pytest.raises(InvalidArgumentError, match="on_nonfinite"):
        DistributedOptimizer(sgd, on_nonfinite="ignore")
