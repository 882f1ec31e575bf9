"""Optimizers of torch that are not wrapped."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, FailedPreconditionError
from stratagem._hosting.modules.unscoped import workers
from tests.client.clusters import running


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
