"""Models and optimizers that a framework has built, trained by its loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import stratagem
from stratagem import (
    ContextError,
    DistributedOptimizer,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from stratagem.frameworks import adopt, distributed
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.loops import STEPS, in_bytes, networks, noise
from tests.full import a_few


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2, num_workers=1) as cluster:
        yield cluster


def grouped(network: nn.Module) -> Optimizer:
    """Without weight decay of biases, as frameworks make it."""
    decayed = [p for p in network.parameters() if p.dim() > 1]
    others = [p for p in network.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.02)


def fit(network: nn.Module, optimizer: Optimizer, scheduler: LambdaLR) -> None:
    """A loop with all that frameworks put into theirs."""
    for number in range(2 * STEPS):
        loss = network(noise(number, 8, 4)).square().mean() / 2
        loss.backward()
        if number % 2:
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def warming_up(optimizer: Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))


@pytest.mark.parametrize("scheduled", ["ours", "theirs"])
@pytest.mark.parametrize("without_cluster", [True, False])
def test_a_loop_of_a_framework_ends_with_the_bytes_of_plain_torch(
    cluster: Cluster, without_cluster: bool, scheduled: str
) -> None:
    plain, ours = networks()[0], networks()[0]
    local = grouped(plain)
    fit(plain, local, warming_up(local))
    with ParameterServerStrategy() if without_cluster else cluster.strategy() as strategy:
        adopt(strategy, ours)
        adamw = grouped(ours)
        optimizer = distributed(strategy, adamw)
        fit(ours, optimizer, warming_up(optimizer if scheduled == "ours" else adamw))
        assert in_bytes([ours]) == in_bytes([plain])
        state, expected = optimizer.state_dict(), local.state_dict()
        assert state["param_groups"] == expected["param_groups"]
        for number, slots in expected["state"].items():
            assert all(torch.equal(state["state"][number][key], slots[key]) for key in slots)


def test_a_model_is_adopted_as_if_it_were_built_in_the_scope(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        network = networks()[0]
        adopt(strategy, network)
        adopt(strategy, network)
        names = [one.name for one in strategy.extended.variable_placements()]
        assert sorted(names) == sorted(name for name, _ in network.named_parameters())


def test_tied_parameters_stay_one(cluster: Cluster) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

    with cluster.strategy() as strategy:
        adopt(strategy, tied := Tied())
        assert len(strategy.extended.variable_placements()) == 3
        assert tied.second.weight is tied.first.weight


def test_a_state_goes_on_where_it_was_saved(cluster: Cluster) -> None:
    plain, ours = networks()[0], networks()[0]
    first = grouped(plain)
    fit(plain, first, warming_up(first))
    weights, state = plain.state_dict(), first.state_dict()
    with cluster.strategy() as strategy:
        adopt(strategy, ours)
        optimizer = distributed(strategy, grouped(ours))
        ours.load_state_dict(weights)
        optimizer.load_state_dict(state)
        fit(ours, optimizer, warming_up(optimizer))
        fit(plain, first, warming_up(first))
        assert in_bytes([ours]) == in_bytes([plain])


def of_two_workers(program: Callable[[ParameterServerStrategy, nn.Module, Optimizer], Any]) -> Any:
    def train(strategy: ParameterServerStrategy, worker: int) -> Any:
        torch.manual_seed(worker)
        network = nn.Linear(2, 1)
        adopt(strategy, network)
        optimizer = distributed(strategy, torch.optim.SGD(network.parameters(), lr=0.1))
        network(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return program(strategy, network, optimizer)

    with running(2, num_workers=2) as cluster:
        return cluster.run(train)


def test_workers_train_the_chiefs_model() -> None:
    def trained(
        strategy: ParameterServerStrategy, network: nn.Module, optimizer: Optimizer
    ) -> list[bytes]:
        strategy.barrier()
        return in_bytes([network])

    first, second = of_two_workers(trained)
    assert first == second


def test_a_step_after_a_write_is_refused_and_one_after_a_refresh_is_not() -> None:
    def written(
        strategy: ParameterServerStrategy, network: nn.Module, optimizer: Optimizer
    ) -> list[bytes]:
        strategy.barrier("stepped")
        with torch.no_grad():
            next(network.parameters()).fill_(1.0)
        with pytest.raises(FailedPreconditionError, match=r"'weight'.*refresh"):
            optimizer.step()
        strategy.barrier("refused")
        strategy.refresh()
        found = in_bytes([network])
        strategy.barrier("seen")
        optimizer.step()
        return found

    first, second = of_two_workers(written)
    assert first == second
    assert first[0] == torch.ones(1, 2).numpy().tobytes()


def test_weights_loaded_with_a_state_are_no_write_between_steps() -> None:
    def resumed(
        strategy: ParameterServerStrategy, network: nn.Module, optimizer: Optimizer
    ) -> None:
        strategy.barrier("stepped")
        network.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
        optimizer.load_state_dict(optimizer.state_dict())
        strategy.barrier("loaded")
        optimizer.step()

    of_two_workers(resumed)


def test_parameters_that_are_not_on_servers_are_refused_by_number(cluster: Cluster) -> None:
    hosted, other = networks()
    with cluster.strategy() as strategy:
        adopt(strategy, hosted)
        sgd = torch.optim.SGD([*hosted.parameters(), *other.parameters()], lr=0.1)
        with pytest.raises(InvalidArgumentError, match="4 of the 8 parameters of SGD"):
            distributed(strategy, sgd)


def test_what_another_strategy_has_is_refused(cluster: Cluster) -> None:
    network = networks()[0]
    with cluster.strategy() as first, running() as another, another.strategy() as second:
        adopt(first, network)
        with pytest.raises(InvalidArgumentError, match="4 of the 4 parameters"):
            distributed(second, grouped(network))
        with pytest.raises(ContextError, match="Mixing"):
            adopt(second, network)


def test_a_gradient_scaler_is_refused(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        network = networks()[0]
        adopt(strategy, network)
        optimizer = distributed(strategy, grouped(network))
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(network(noise(0, 8, 4)).sum()).backward()
        before = in_bytes([network])
        with pytest.raises(FailedPreconditionError, match="GradScaler"):
            scaler.step(optimizer)
        strategy.refresh()
        assert in_bytes([network]) == before


def test_an_optimizer_that_has_stepped_is_refused(cluster: Cluster) -> None:
    network = networks()[0]
    adamw = grouped(network)
    fit(network, adamw, warming_up(adamw))
    with cluster.strategy() as strategy:
        adopt(strategy, network)
        with pytest.raises(FailedPreconditionError, match="has state already"):
            distributed(strategy, adamw)


def test_several_replicas_and_other_strategies_are_refused(cluster: Cluster) -> None:
    stratagem.config.set_logical_cpus(2)
    try:
        with (
            cluster.strategy(num_replicas_per_worker=2) as strategy,
            pytest.raises(InvalidArgumentError, match="num_replicas_per_worker=1"),
        ):
            adopt(strategy, nn.Linear(1, 1))
    finally:
        stratagem.config.set_logical_cpus(1)
    alone: Any = stratagem.OneDeviceStrategy("CPU:0")
    with pytest.raises(InvalidTypeError, match="ParameterServerStrategy"):
        adopt(alone, nn.Linear(1, 1))


def test_what_is_built_and_trained_in_one_scope_ends_with_the_bytes_of_plain_torch(
    cluster: Cluster,
) -> None:
    plain = networks()[0]
    local = grouped(plain)
    fit(plain, local, warming_up(local))
    with cluster.strategy() as strategy:
        with strategy.scope():
            ours = networks()[0]
            optimizer = distributed(strategy, grouped(ours))
            fit(ours, optimizer, warming_up(optimizer))
        assert in_bytes([ours]) == in_bytes([plain])


def by_operation(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.sub_(parameter.grad)


def by_data(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.data.sub_(parameter.grad)


def by_replacing_data(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.data = parameter.data - parameter.grad


@pytest.mark.parametrize("write", [by_operation, by_data, by_replacing_data])
@a_few("how", ["adopted", "in a scope", "alone"], "a module is known however it was handed over")
def test_optimizers_that_are_none_of_torchs_are_refused(
    how: str, write: Callable[[torch.Tensor], None]
) -> None:
    def train(strategy: ParameterServerStrategy, worker: int) -> None:
        if how == "in a scope":
            with strategy.scope():
                network = nn.Linear(2, 1)
        else:
            adopt(strategy, network := nn.Linear(2, 1))
        network.weight.data.fill_(0.5)
        network(torch.ones(1, 2)).sum().backward()
        network(torch.ones(1, 2)).sum().backward()
        for parameter in network.parameters():
            write(parameter)
        with pytest.raises(FailedPreconditionError, match=r"'(weight|bias)'.*none of torch's"):
            network(torch.ones(1, 2)).sum().backward()

    with running(2, num_workers=1 if how == "alone" else 2) as cluster:
        cluster.run(train)


def test_a_lone_worker_may_write_what_its_optimizer_steps(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        adopt(strategy, network := nn.Linear(2, 1))
        DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=0.1))
        for _ in range(3):
            network(torch.ones(1, 2)).sum().backward()
            for parameter in network.parameters():
                by_operation(parameter)
        written = in_bytes([network])
        strategy.refresh()
        assert in_bytes([network]) == written
