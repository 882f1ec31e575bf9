"""Which values of parameters scheduled functions see, and what becomes of those they write."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from stratagem import ContextError, DistributedOptimizer
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.full import a_few

WORKERS = 2


class Model:
    """A weight that each step lowers by 1."""

    def __init__(self, here: Coordination) -> None:
        self.here = here
        with here.strategy.scope():
            module = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(module.weight)
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

        def step() -> None:
            optimizer.zero_grad()
            module(torch.ones(1, 1)).sum().backward()
            optimizer.step()

        self.module, self.optimizer, self.step = module, optimizer, step

    def write(self, value: float) -> None:
        with torch.no_grad():
            self.module.weight.fill_(value)

    def seen(self) -> list[float]:
        """What a function of each worker sees."""
        together = threading.Barrier(WORKERS, timeout=60)
        MEETINGS.append(together)
        number, weight = len(MEETINGS) - 1, self.module.weight

        def look() -> float:
            meet(number)
            return weight.item()

        values = [self.here.coordinator.schedule(look) for _ in range(WORKERS)]
        return [value.get() for value in values]

    def raises(self, function: Callable[[], Any]) -> pytest.ExceptionInfo[Exception]:
        """Run a function on a worker, whose error is raised."""
        self.here.coordinator.schedule(function)
        with pytest.raises((ContextError, ZeroDivisionError)) as raised:
            self.here.coordinator.join()
        return raised


# Functions find them here, since worker servers are threads of this process.
MEETINGS: list[threading.Barrier] = []


def meet(number: int) -> None:
    MEETINGS[number].wait()


@pytest.fixture
def model() -> Iterator[Model]:
    with coordinating(num_workers=WORKERS) as here:
        yield Model(here)


def test_functions_see_what_the_program_has_written(model: Model) -> None:
    for value in (5.0, 7.0):
        model.write(value)
        assert model.seen() == [value] * WORKERS


def test_functions_see_what_functions_have_trained_that_the_program_waited_for(
    model: Model,
) -> None:
    coordinator = model.here.coordinator
    assert model.seen() == [0.0] * WORKERS
    for _ in range(6):
        coordinator.schedule(model.step)
    coordinator.join()
    assert model.seen() == [-6.0] * WORKERS
    coordinator.schedule(model.step).get()
    assert model.seen() == [-7.0] * WORKERS


def test_a_value_counts_while_others_are_awaited(model: Model) -> None:
    coordinator = model.here.coordinator
    assert model.seen() == [0.0] * WORKERS
    held = threading.Barrier(2, timeout=60)
    MEETINGS.append(held)
    weight = model.module.weight
    staying = coordinator.schedule(meet, args=(len(MEETINGS) - 1,))
    coordinator.schedule(model.step).get()
    assert coordinator.schedule(weight.item).get() == -1.0
    held.wait()
    staying.get()
    assert model.seen() == [-1.0] * WORKERS


def written(model: Model) -> dict[str, Callable[[], Any]]:
    """Functions that write parameters, or the state of an optimizer."""
    module, optimizer, step = model.module, model.optimizer, model.step

    def clamp() -> None:
        with torch.no_grad():
            module.weight.clamp_(min=3.0)

    def average() -> None:
        module.weight.data.lerp_(torch.ones(1, 1), 0.5)

    def load() -> None:
        module.load_state_dict({"weight": torch.ones(1, 1)})

    def clamp_and_step() -> None:
        clamp()
        step()

    def load_momentum() -> None:
        optimizer.load_state_dict(optimizer.state_dict())

    def clamp_before_a_run() -> None:
        clamp()
        strategy.run(float)

    strategy = model.here.strategy
    return {
        "clamp": clamp,
        "average": average,
        "load": load,
        "step": clamp_and_step,
        "run": lambda: strategy.run(clamp),
        "before run": clamp_before_a_run,
        "momentum": load_momentum,
    }


@a_few(
    "how",
    ["clamp", "average", "load", "step", "run", "before run", "momentum"],
    "a write is refused where the value is, whoever writes",
    3,
)
def test_what_a_function_writes_is_refused_and_changes_nothing(model: Model, how: str) -> None:
    for _ in range(2):
        model.here.coordinator.schedule(model.step)
    model.here.coordinator.join()
    message = str(model.raises(written(model)[how]).value)
    assert re.search("was (written|loaded) in a (replica|function)", message)
    assert model.seen() == [-2.0] * WORKERS
    assert model.module.weight.item() == -2.0


def test_a_function_that_fails_after_a_write_leaves_nothing_of_it(model: Model) -> None:
    module = model.module

    def fail() -> None:
        with torch.no_grad():
            module.weight.fill_(9.0)
        raise ZeroDivisionError

    assert model.raises(fail).type is ZeroDivisionError
    assert model.seen() == [0.0] * WORKERS
    model.here.coordinator.schedule(model.step).get()
    assert model.seen() == [-1.0] * WORKERS
