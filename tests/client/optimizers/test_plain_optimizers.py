"""Optimizers of torch that are not wrapped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, FailedPreconditionError
from stratagem._hosting.other_steps import workers
from tests.client.clusters import running
from tests.full import a_few


@pytest.fixture(autouse=True)
def no_other_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests of this process left open: it may be warned of, too."""
    monkeypatch.setattr(workers, "_warned", WeakKeyDictionary())


def stepped(strategy: stratagem.Strategy, in_run: bool = True) -> nn.Linear:
    with strategy.scope():
        module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(module.weight)
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)

    def step() -> None:
        module(torch.ones(1, 1)).sum().backward()
        sgd.step()

    strategy.run(step) if in_run else step()
    return module


@pytest.mark.parametrize("in_run", [True, False])
def test_a_step_of_a_copy_is_refused_and_changes_nothing(in_run: bool) -> None:
    refusal = pytest.raises(FailedPreconditionError, match=r"DistributedOptimizer\(SGD")
    with running(1) as cluster, cluster.strategy() as strategy, refusal:
        stepped(strategy, in_run)
    stratagem.config.set_logical_cpus(2)
    try:
        with pytest.raises(FailedPreconditionError, match="MirroredStrategy"):
            stepped(stratagem.MirroredStrategy(["CPU:0", "CPU:1"]))
    finally:
        stratagem.config.set_logical_cpus(1)


@pytest.mark.parametrize("in_run", [True, False])
def test_a_step_of_the_value_of_a_variable_is_refused_as_that_of_a_parameter(in_run: bool) -> None:
    def train(strategy: stratagem.Strategy) -> None:
        with strategy.scope():
            variable = stratagem.Variable(torch.ones(2))
        sgd = torch.optim.SGD([variable.value()], lr=1.0)

        def step() -> None:
            variable.value().sum().backward()
            sgd.step()

        with pytest.raises(FailedPreconditionError, match=r"DistributedOptimizer\(SGD"):
            strategy.run(step) if in_run else step()
        assert variable.read_value().tolist() == [1.0, 1.0]

    with running(1) as cluster, cluster.strategy() as strategy:
        train(strategy)
    stratagem.config.set_logical_cpus(2)
    try:
        train(stratagem.MirroredStrategy(["CPU:0", "CPU:1"]))
    finally:
        stratagem.config.set_logical_cpus(1)


def linear(outside: torch.Tensor) -> nn.Module:
    return nn.Linear(1, 1)


def lazy(outside: torch.Tensor) -> nn.Module:
    module = nn.LazyLinear(1)
    module(outside)
    return module


def copied(outside: torch.Tensor) -> nn.Module:
    return copy.deepcopy(linear(outside))


def frozen_before(outside: torch.Tensor) -> nn.Module:
    module = nn.Sequential(nn.Linear(1, 1))
    module.add_module("more", nn.Linear(1, 1).requires_grad_(False))
    return module.requires_grad_()


BUILDERS = [linear, lazy, copied, frozen_before]


@a_few("num_workers", [1, 2], "a lone worker is refused by the same line")
@a_few("build", BUILDERS, "parameters are known however they have come to their module", 2)
def test_a_step_in_the_open_scope_is_refused_as_behind_it(
    build: Callable[[torch.Tensor], nn.Module], num_workers: int
) -> None:
    def train(strategy: stratagem.Strategy, worker: int) -> None:
        with strategy.scope():
            module = build(x := torch.ones(1, 1))
            before = [parameter.detach().clone() for parameter in module.parameters()]
            sgd = torch.optim.SGD(module.parameters(), lr=1.0)
            module(x).sum().backward()
            with pytest.raises(FailedPreconditionError, match=r"DistributedOptimizer\(SGD"):
                sgd.step()
        if worker == 0:
            assert all(map(torch.equal, module.parameters(), before))

    with running(1, num_workers=num_workers) as cluster:
        cluster.run(train)


def subtract_gradients(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad)


@pytest.mark.parametrize("build", BUILDERS)
def test_writes_between_backwards_in_the_open_scope_are_refused(
    build: Callable[[torch.Tensor], nn.Module],
) -> None:
    with (
        running(1) as cluster,
        cluster.strategy() as strategy,
        pytest.raises(FailedPreconditionError, match="whose scope is open, was written"),
        strategy.scope(),
    ):
        module = build(x := torch.ones(1, 1))
        for _ in range(2):
            module(x).sum().backward()
            subtract_gradients(module)
        raise AssertionError("it trained")


def test_a_scope_takes_no_trained_parameters_for_initial_values() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with (
            pytest.raises(FailedPreconditionError, match="'weight' of a Linear, whose scope"),
            strategy.scope(),
        ):
            module = nn.Linear(1, 1, bias=False)
            module(torch.ones(1, 1)).sum().backward()
            subtract_gradients(module)
        # It belongs to nobody now.
        for _ in range(2):
            module(torch.ones(1, 1)).sum().backward()
            subtract_gradients(module)


def test_gradients_of_initial_values_may_be_looked_at_in_the_scope() -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        with strategy.scope():
            module = nn.Linear(1, 1, bias=False)
            nn.init.ones_(module.weight)
            for _ in range(2):
                module(torch.ones(1, 1)).sum().backward()
        sgd = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.25))
        sgd.step()
        assert module.weight.item() == 0.5


@pytest.mark.parametrize("in_run", [True, False])
def test_one_copy_may_be_stepped_by_anything(in_run: bool) -> None:
    strategy = stratagem.OneDeviceStrategy("CPU:0")
    module = stepped(strategy, in_run)
    strategy.run(lambda: None)
    assert module.weight.item() == 0.0


def test_a_model_of_no_scope_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(1, num_workers=2) as cluster, cluster.strategy() as strategy:
        module = nn.Linear(1, 1)
        sgd = torch.optim.SGD(module.parameters(), lr=1.0)
        for _ in range(2):
            strategy.run(sgd.step)
    (record,) = caplog.records
    assert "each worker trains its own" in record.message
    assert "strategy.scope()" in record.message


def test_a_wrapped_optimizer_of_no_scope_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = nn.Linear(1, 1)
    with running(1, num_workers=2) as cluster, cluster.strategy():
        DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    (record,) = caplog.records
    assert "each worker trains its own" in record.message


def test_nobody_is_warned_of_what_a_lone_worker_trains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = nn.Linear(1, 1)
    with running(1) as cluster, cluster.strategy() as strategy:
        sgd = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
        sgd.step()
        strategy.run(torch.optim.SGD(module.parameters(), lr=1.0).step)
    assert not caplog.records


def test_nobody_is_warned_of_a_strategy_that_another_one_has_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = nn.Linear(1, 1)
    with (
        running(1, num_workers=2) as earlier,
        earlier.strategy(),
        running(1) as cluster,
        cluster.strategy(),
    ):
        DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    assert not caplog.records


def test_nobody_is_warned_of_a_closed_strategy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = nn.Linear(1, 1)
    with running(1, num_workers=2) as cluster:
        with cluster.strategy() as closed:
            pass
        DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    assert closed.num_replicas_in_sync == 1
    assert not caplog.records
