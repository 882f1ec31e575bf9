"""Classes of the program itself, which workers cannot import."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer, FailedPreconditionError, Variable
from tests.client.coordinator.coordination import Coordination, coordinating

ONES = torch.ones(4, 2)
strategies: list[Any] = []
"""What methods find in the program, and not on a worker."""


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    strategies.clear()


class Trainer:
    """Trains as programs do: with all that it needs as attributes."""

    def __init__(self, coordination: Coordination) -> None:
        self.coordinator, self.strategy = (
            coordination.coordinator,
            coordination.strategy,
        )
        with self.strategy.scope():
            self.model = nn.Linear(2, 1)
            self.steps = Variable(0)
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = DistributedOptimizer(sgd)

    def step(self) -> bool:
        self.steps.assign_add(1)
        self.strategy.run(self.replica)
        return bool(strategies)

    def replica(self) -> None:
        self.optimizer.zero_grad()
        self.model(ONES).square().mean().backward()
        self.optimizer.step()

    def train_more(self) -> None:
        self.coordinator.schedule(self.step)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def seen(self) -> bool:
        return bool(strategies)


class Odd(Exception):
    """An error of the program's own."""

    def seen(self) -> bool:
        return bool(strategies)


def by_value(found: Any) -> Any:
    """Let a function or class travel as those of a program do."""
    found.__module__ = "__main__"
    for member in vars(found).values():
        if callable(member):
            by_value(member)
    return found


for each in (Trainer, Point, Odd):
    by_value(each)


def test_methods_are_scheduled_again_and_again_as_they_are() -> None:
    with coordinating(num_workers=1) as coordination:
        trainer, step = Trainer(coordination), Trainer.step
        values = [coordination.coordinator.schedule(trainer.step) for _ in range(3)]
        strategies.append(coordination.strategy)
        assert [value.fetch() for value in values] == [False] * 3
        assert trainer.steps.numpy() == 3
        assert Trainer.step is step


def test_what_comes_back_is_of_the_class_of_the_program() -> None:
    def make() -> Point:
        return Point(3)

    with coordinating(num_workers=1, trust_workers=True) as coordination:
        value = coordination.coordinator.schedule(by_value(make))
        point = value.fetch()
        strategies.append(coordination.strategy)
        assert type(point) is Point
        assert point.x == 3
        assert point.seen()


def test_an_error_is_of_the_class_of_the_program() -> None:
    def fail() -> None:
        raise Odd("so it is")

    with coordinating(num_workers=1, trust_workers=True) as coordination:
        with pytest.raises(Odd, match="so it is") as raised:
            coordination.coordinator.schedule(by_value(fail)).fetch()
        strategies.append(coordination.strategy)
        assert raised.value.seen()
        with pytest.raises(Odd):
            coordination.coordinator.join()


class Batch(NamedTuple):
    """A named tuple of the program's own."""

    rows: torch.Tensor
    name: str


def test_a_named_tuple_is_of_the_class_of_the_program_also_without_pickle() -> None:
    def make() -> Batch:
        return Batch(ONES, "ones")

    Batch.__module__ = "__main__"
    with coordinating(num_workers=1) as coordination:
        batch = coordination.coordinator.schedule(by_value(make)).get()
        assert type(batch) is Batch
        assert batch.name == "ones"
        assert torch.equal(batch.rows, ONES)


def test_a_function_may_have_the_coordinator_but_not_use_it() -> None:
    with coordinating(num_workers=1) as coordination:
        trainer = Trainer(coordination)
        says = "ClusterCoordinator.schedule, but only the program schedules"
        with pytest.raises(FailedPreconditionError, match=says):
            coordination.coordinator.schedule(trainer.train_more).fetch()
        with pytest.raises(FailedPreconditionError, match=says):
            coordination.coordinator.join()
