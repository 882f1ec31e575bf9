"""Variables with a copy on every device of several workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import (
    MultiWorkerMirroredStrategy,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)
from stratagem_proto.errors import InvalidArgumentError
from tests.client.variables.drawn_writes import Write
from tests.cluster.two_workers import on_two_workers, replica, worker

pytestmark = pytest.mark.cluster

Strategy = MultiWorkerMirroredStrategy
SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST = VariableAggregation.ONLY_FIRST_REPLICA
ON_READ = VariableSynchronization.ON_READ


def test_variables_start_with_the_chiefs_values() -> None:
    def create(strategy: Strategy) -> Any:
        number = float(worker(strategy))
        with strategy.scope():
            variable = Variable(lambda: torch.full((2,), number))
            module = nn.BatchNorm1d(2)
            module.register_buffer("own", torch.full((3,), number))
            nn.init.constant_(module.weight, number + 1)
        copies = [copy.numpy().tolist() for copy in variable.values]
        return copies, module.weight.tolist(), module.get_buffer("own").tolist()

    chief = [[0.0, 0.0]] * 2, [1.0, 1.0], [0.0] * 3
    assert on_two_workers(create) == [chief, chief]


def test_variables_that_are_not_the_same_are_shown() -> None:
    def create(strategy: Strategy) -> None:
        with strategy.scope():
            Variable(1.0, name="epoch" if worker(strategy) else "step")

    with pytest.raises(InvalidArgumentError, match=r"task:0 has step.*task:1 has epoch"):
        on_two_workers(create)


def test_modules_in_another_order_are_refused() -> None:
    def create(strategy: Strategy) -> None:
        order = ["user", "item"]
        with strategy.scope():
            tables = {name: nn.Embedding(3, 2) for name in order[:: -1 if worker(strategy) else 1]}
        del tables

    with pytest.raises(InvalidArgumentError, match=r"'weight' is of 'item' in .*task:1's program"):
        on_two_workers(create)


def test_modules_that_are_not_the_same_are_shown() -> None:
    def build(strategy: Strategy) -> nn.Module:
        with strategy.scope():
            return nn.Linear(2, 2 + worker(strategy))

    message = r"task:0 has \['weight', .*\[2, 2\].*task:1 has .*\[3, 2\].*'Linear'"
    with pytest.raises(InvalidArgumentError, match=message):
        on_two_workers(build)


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST])
def test_what_replicas_write_is_combined_over_workers(
    aggregation: VariableAggregation, cpus: int
) -> None:
    def write(strategy: Strategy) -> Any:
        with strategy.scope():
            variable = Variable(10.0, dtype=torch.float64, aggregation=aggregation)
        strategy.run(lambda: variable.assign_add(replica() + 1))
        return [copy.numpy().item() for copy in variable.values]

    numbers = range(1, 2 * cpus + 1)
    delta = {SUM: sum(numbers), MEAN: sum(numbers) / len(numbers), FIRST: 1}
    expected = [10.0 + delta[aggregation]] * cpus
    assert on_two_workers(write, cpus) == [expected, expected]


@pytest.mark.parametrize("cpus", [1, 2])
def test_replicas_need_an_aggregation_to_write(cpus: int) -> None:
    def write(strategy: Strategy) -> None:
        with strategy.scope():
            variable = Variable(1.0)
        with pytest.raises(ValueError, match="must specify an aggregation method"):
            strategy.run(lambda: variable.assign(2.0))

    on_two_workers(write, cpus)


@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST])
def test_a_variable_synchronized_on_read_is_read_over_all_workers(
    aggregation: VariableAggregation,
) -> None:
    def count(strategy: Strategy) -> Any:
        with strategy.scope():
            seen = Variable(0.0, synchronization=ON_READ, aggregation=aggregation)
        strategy.run(lambda: seen.assign_add(replica() + 1.0))
        before = seen.read_value().item()
        seen.assign(8.0)
        return before, seen.read_value().item(), seen.values[0].numpy().item()

    before = {SUM: 10.0, MEAN: 2.5, FIRST: 1.0}[aggregation]
    expected = before, 8.0, 2.0 if aggregation is SUM else 8.0
    assert on_two_workers(count) == [expected, expected]


def test_the_remainder_of_an_integer_goes_to_the_first_of_all_replicas() -> None:
    def assign(strategy: Strategy) -> Any:
        with strategy.scope():
            count = Variable(0, synchronization=ON_READ, aggregation=SUM)
        count.assign(7)
        return [copy.numpy().item() for copy in count.values], int(count.read_value())

    assert on_two_workers(assign) == [([4, 1], 7), ([1, 1], 7)]


def test_copies_on_workers_stay_equal_or_the_write_is_refused() -> None:
    def program(strategy: Strategy) -> list[list[Any]]:
        found = []
        for seed in range(40):
            write = Write(strategy, random.Random(seed))
            if write.way == "update by chance":
                continue  # refused, and with another first copy on each worker
            refusal = write.attempt()
            found.append([repr(write), type(refusal), [x.tolist() for x in write.copies()]])
        return found

    for first, second in zip(*on_two_workers(program, cpus=3), strict=True):
        assert first == second
        _, _, (one, *others) = first
        assert all(other == one for other in others), first


@pytest.mark.parametrize(
    "write",
    [
        lambda strategy, v: v.assign(worker(strategy)),
        lambda strategy, v: worker(strategy) or v.assign_add(1.0),
        lambda strategy, v: strategy.extended.update(
            v, lambda v, x: v.assign(x), args=(float(worker(strategy)),)
        ),
    ],
    ids=["another value", "one worker", "an update"],
)
def test_copies_that_workers_write_differently_are_found_at_the_next_exchange(
    write: Callable[[Strategy, Variable], Any],
) -> None:
    def program(strategy: Strategy) -> None:
        with strategy.scope():
            variable = Variable(0.0, name="best")
        write(strategy, variable)
        strategy.reduce("SUM", strategy.run(lambda: torch.ones(())), axis=None)

    with pytest.raises(InvalidArgumentError, match="'best' was written by hand, and not alike"):
        on_two_workers(program)
