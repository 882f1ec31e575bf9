"""Settings of modules and optimizers: each function begins with those of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from stratagem import DistributedOptimizer
from stratagem.coordinator import ClusterCoordinator
from stratagem_proto.errors import FailedPreconditionError
from tests.client.coordinator.coordination import coordinating

Trained: TypeAlias = tuple[ClusterCoordinator, nn.Sequential, DistributedOptimizer]


@pytest.fixture
def trained() -> Iterator[Trained]:
    """A module of two parts, and an optimizer with a rate of 1."""
    with coordinating(num_workers=1) as here:
        with here.strategy.scope():
            module = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
        sgd = torch.optim.SGD(module.parameters(), lr=1.0)
        yield here.coordinator, module, DistributedOptimizer(sgd)


Change: TypeAlias = Callable[[nn.Sequential, DistributedOptimizer], object]
Look: TypeAlias = Callable[[nn.Sequential, DistributedOptimizer], object]


def slower(module: nn.Sequential, optimizer: DistributedOptimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.25


def faster(module: nn.Sequential, optimizer: DistributedOptimizer) -> None:
    optimizer.param_groups[0]["lr"] = 1.0


SETTINGS: dict[str, tuple[Change, Change, Look]] = {
    "mode": (
        lambda module, _: module.eval(),
        lambda module, _: module.train(),
        lambda module, _: [each.training for each in module.modules()],
    ),
    "frozen": (
        lambda module, _: module.requires_grad_(False),
        lambda module, _: module.requires_grad_(True),
        lambda module, _: [each.requires_grad for each in module.parameters()],
    ),
    "rate": (slower, faster, lambda _, optimizer: optimizer.param_groups[0]["lr"]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_function_sets_ends_with_it(trained: Trained, name: str) -> None:
    coordinator, module, optimizer = trained
    change, undo, look = SETTINGS[name]

    def changed() -> object:
        change(module, optimizer)
        return look(module, optimizer)

    def seen() -> object:
        return look(module, optimizer)

    def same() -> bool:
        return bool(coordinator.schedule(seen).get() == look(module, optimizer))

    assert coordinator.schedule(changed).get() != look(module, optimizer)
    assert same()
    undo(module, optimizer)
    assert same()
    change(module, optimizer)
    assert same()
    undo(module, optimizer)
    assert same()


def hook(*_: object) -> None:
    """One that changes nothing."""


HOOKS: dict[str, Change] = {
    "gradient": lambda module, _: next(module.parameters()).register_hook(hook),
    "accumulated": lambda module, _: next(module.parameters()).register_post_accumulate_grad_hook(
        hook
    ),
    "before step": lambda _, optimizer: optimizer.register_step_pre_hook(hook),
    "after step": lambda _, optimizer: optimizer.register_step_post_hook(hook),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_that_workers_would_not_call_are_refused(trained: Trained, name: str) -> None:
    coordinator, module, optimizer = trained
    handle: Any = HOOKS[name](module, optimizer)

    def step() -> None:
        module[0](torch.ones(1, 1)).sum().backward()
        optimizer.step()

    with pytest.raises(FailedPreconditionError, match="has hooks, which functions on worker"):
        coordinator.schedule(step)
    handle.remove()
    coordinator.schedule(step).get()


def test_schedulers_step_in_the_program(trained: Trained) -> None:
    coordinator, _, optimizer = trained
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 / (1 + number))

    def rate() -> float:
        return float(optimizer.param_groups[0]["lr"])

    with pytest.raises(
        FailedPreconditionError, match=r"LambdaLR, .* call step\(\) of the scheduler"
    ):
        coordinator.schedule(lambda: scheduler.step())
    assert coordinator.schedule(rate).get() == 1.0
    optimizer.step()
    scheduler.step()
    assert coordinator.schedule(rate).get() == 0.5
