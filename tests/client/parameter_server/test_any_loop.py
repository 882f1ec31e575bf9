"""Loops as others write them, which end with the bytes of plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import stratagem
from stratagem import ContextError, DistributedOptimizer, ParameterServerStrategy
from stratagem.consistency import Bounded
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.loops import (
    LOOPS,
    OPTIMIZERS,
    STEPS,
    Loop,
    expected,
    found,
    in_bytes,
    networks,
    noise,
    plain,
)
from tests.full import a_few, by_values


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2, num_workers=1) as cluster:
        yield cluster


@by_values("name,loop,in_run", list(OPTIMIZERS), LOOPS, [True, False])
def test_a_loop_ends_with_the_bytes_of_plain_torch(
    cluster: Cluster, name: str, loop: Loop, in_run: bool
) -> None:
    with cluster.strategy() as strategy:
        ours = found(strategy, loop, OPTIMIZERS[name], in_run)
    assert ours == expected(loop, OPTIMIZERS[name])


_SETTINGS: Sequence[dict[str, Any]] = (
    {"fused_steps": False},
    {"consistency": "sync"},
    {"consistency": Bounded(1)},
    {"consistency": "sync", "fused_steps": False},
    {"variable_partitioner": stratagem.partitioners.FixedShardsPartitioner(2)},
)


@by_values("settings,loop,in_run", _SETTINGS, LOOPS, [True, False])
def test_a_loop_is_that_of_plain_torch_whatever_holds_workers_together(
    cluster: Cluster, settings: dict[str, Any], loop: Loop, in_run: bool
) -> None:
    with cluster.strategy(**settings) as strategy:
        ours = found(strategy, loop, OPTIMIZERS["Adam"], in_run)
    assert ours == expected(loop, OPTIMIZERS["Adam"])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: stratagem.OneDeviceStrategy("CPU:0"),
        lambda: stratagem.MirroredStrategy(["CPU:0"]),
        ParameterServerStrategy,
    ],
)
def test_strategies_with_one_device_need_no_run(
    make: Callable[[], stratagem.Strategy], loop: Loop
) -> None:
    ours = found(make(), loop, OPTIMIZERS["Adam"], in_run=False)
    assert ours == expected(loop, OPTIMIZERS["Adam"])


@pytest.mark.parametrize("once", [True, False])
def test_writes_through_data_are_seen(cluster: Cluster, once: bool) -> None:
    """As a Wasserstein GAN clips its critic."""

    def train(network: nn.Module, optimizer: Optimizer) -> list[bytes]:
        data = [parameter.data for parameter in network.parameters()]
        for number in range(STEPS):
            optimizer.zero_grad()
            network(noise(number, 8, 4)).square().mean().backward()
            optimizer.step()
            if not once:
                data = [parameter.data for parameter in network.parameters()]
            for value in data:
                value.clamp_(-0.2, 0.2)
        return in_bytes([network])

    local = networks()[0]
    wanted = train(local, OPTIMIZERS["Adam"]([*local.parameters()]))
    with cluster.strategy() as strategy:
        with strategy.scope():
            network = networks()[0]
        adam = DistributedOptimizer(OPTIMIZERS["Adam"]([*network.parameters()]))
        assert train(network, adam) == wanted
        strategy.refresh()
        assert in_bytes([network]) == wanted
        with pytest.raises(ContextError, match="written in a replica"):
            strategy.run(train, args=(network, adam))


@pytest.mark.parametrize("in_scope", [True, False])
def test_a_step_outside_of_runs_takes_writes_and_closures(cluster: Cluster, in_scope: bool) -> None:
    def train(network: nn.Module, optimizer: Optimizer) -> list[bytes]:
        def closure() -> float:
            optimizer.zero_grad()
            loss = network(noise(0, 8, 4)).square().mean()
            loss.backward()
            return float(loss.detach())

        for _ in range(STEPS):
            optimizer.step(closure)
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.clamp_(-0.3, 0.3)
        return in_bytes([network])

    local = networks()[0]
    wanted = train(local, OPTIMIZERS["Adam"]([*local.parameters()]))
    with cluster.strategy() as strategy:
        with strategy.scope():
            network = networks()[0]
            ours = DistributedOptimizer(OPTIMIZERS["Adam"]([*network.parameters()]))
            if in_scope:
                assert train(network, ours) == wanted
        if not in_scope:
            assert train(network, ours) == wanted


def test_a_write_within_run_is_refused_before_a_step_takes_its_place(
    cluster: Cluster,
) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            module = nn.Linear(1, 1, bias=False)
            nn.init.ones_(module.weight)
        sgd = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

        def clip_and_step() -> None:
            with torch.no_grad():
                module.weight.clamp_(max=0.5)
            module.weight.grad = torch.ones(1, 1)
            sgd.step()

        with pytest.raises(ContextError, match="written in a replica"):
            strategy.run(clip_and_step)
        strategy.refresh()
        assert module.weight.item() == 1.0
        clip_and_step()
        assert module.weight.item() == -0.5


def test_several_replicas_need_run() -> None:
    stratagem.config.set_logical_cpus(2)
    strategy = stratagem.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(ContextError, match=r"strategy\.run\(\)"):
        found(strategy, plain, OPTIMIZERS["SGD"], in_run=False)


@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("prefetched", [True, False])
def test_rows_of_tables_are_those_of_the_step_before(
    cluster: Cluster, prefetched: bool, in_run: bool
) -> None:
    rows = [torch.tensor([0, 1, 2]), torch.tensor([3, 1])]

    def train(table: nn.Embedding, optimizer: Optimizer) -> None:
        for number in range(STEPS):
            some = rows[number % 2]
            optimizer.zero_grad()
            if prefetched:
                stratagem.nn.prefetch([(table, some)])
            table(some).square().sum().backward()
            optimizer.step()

    def table() -> nn.Embedding:
        torch.manual_seed(2)
        return nn.Embedding(4, 2, sparse=True)

    local = table()
    train(local, torch.optim.SGD(local.parameters(), lr=0.1))
    with cluster.strategy() as strategy:
        with strategy.scope():
            ours = table()
        sgd = DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
        if in_run:
            strategy.run(train, args=(ours, sgd))
        else:
            train(ours, sgd)
        assert torch.equal(ours(torch.arange(4)), local(torch.arange(4)))


def test_a_compiled_model_has_what_its_steps_made(cluster: Cluster) -> None:
    def train(network: nn.Module, optimizer: Optimizer) -> None:
        compiled = torch.compile(network, backend="eager")
        for number in range(STEPS):
            optimizer.zero_grad()
            compiled(noise(number, 8, 4)).square().mean().backward()
            optimizer.step()

    local = networks()[0]
    train(local, torch.optim.Adam(local.parameters()))
    with cluster.strategy() as strategy:
        with strategy.scope():
            network = networks()[0]
        adam = DistributedOptimizer(torch.optim.Adam(network.parameters()))
        strategy.run(train, args=(network, adam))
    assert in_bytes([network]) == in_bytes([local])


@pytest.mark.parametrize("in_run", [True, False])
def test_with_a_push_in_flight_a_loop_lacks_its_last_push_at_most(
    cluster: Cluster, in_run: bool
) -> None:
    def count(module: nn.Linear, optimizer: Optimizer) -> list[float]:
        seen = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            seen.append(module.weight.item())
            module(torch.full((1, 1), -1.0)).sum().backward()
            optimizer.step()
        return seen

    with cluster.strategy(pushes_in_flight=1) as strategy:
        with strategy.scope():
            module = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(module.weight)
        sgd = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
        taken = partial(count, module, sgd)
        seen = strategy.run(taken) if in_run else taken()
    # Within a run the program waits for all pushes but the first.
    assert seen == ([0, 0, 2, 3, 4, 5] if in_run else [0, 0, 1, 2, 3, 4])


@a_few("in_run", [True, False], "loops of one worker are shown within and without run")
@a_few("consistency", ["async", "sync", Bounded(1)], "each mode is tried by tests/consistency", 2)
def test_the_loops_of_two_workers_lose_nothing(in_run: bool, consistency: Any) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        with strategy.scope():
            module = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(module.weight)
        sgd = torch.optim.SGD(module.parameters(), lr=1.0)
        optimizer = DistributedOptimizer(sgd, "sum")

        def loop() -> list[float]:
            seen = []
            for _ in range(STEPS):
                module.weight.grad = torch.full((1, 1), -1.0)
                optimizer.step()
                seen.append(module.weight.item())
            return seen

        seen: list[float] = strategy.run(loop) if in_run else loop()
        strategy.barrier()
        return [*seen, module.weight.item()]

    with running(2, num_workers=2) as cluster:
        results = cluster.run(program, consistency=consistency)
    for seen in results:
        assert seen[-1] == 2 * STEPS
        # Each step returns with its own update, and all that it had seen before.
        assert all(value >= number for number, value in enumerate(seen, 1))
        assert seen == sorted(seen)
    if consistency == "sync":
        assert results[0] == results[1] == [*range(2, 2 * STEPS + 1, 2), 2 * STEPS]


@a_few("in_run", [True, False], "loops of one worker are shown within and without run")
@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_a_loop_sees_what_only_the_other_worker_trains(in_run: bool, consistency: str) -> None:
    """As with an expert, or a task's head, that only some batches use."""

    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        with strategy.scope():
            module = nn.Linear(1, 1)
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
        own, others = [module.weight, module.bias][:: 1 - 2 * worker]
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0), "sum")

        def step() -> None:
            own.grad = torch.full_like(own, -1.0)
            optimizer.step()

        def loop() -> list[float]:
            seen = []
            for _ in range(STEPS):
                step()
                seen.append(others.item())
            return seen

        seen: list[float] = strategy.run(loop) if in_run else loop()
        strategy.barrier()
        step()
        return [*seen, others.item()]

    with running(2, num_workers=2) as cluster:
        results = cluster.run(program, consistency=consistency)
    for *seen, last in results:
        assert last >= STEPS
        assert consistency == "async" or [*seen, last] == [*range(1, STEPS + 2)]


def test_a_step_is_not_computed_on_what_a_missing_worker_keeps_old(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy(consistency="sync", peer_seconds=0.2) as strategy,
    ):
        with strategy.scope():
            module = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(module.weight)
        sgd = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

        def step() -> None:
            module.weight.grad = torch.ones(1, 1)
            sgd.step()

        step()
        # The first counts, whoever is late; a second one would begin with old values.
        assert any("counts, but was not completed" in each for each in caplog.messages)
        with pytest.raises(stratagem.DeadlineExceededError, match="worker 1"):
            step()


@pytest.mark.parametrize("in_run", [True, False])
def test_a_function_of_a_coordinator_may_be_a_loop(in_run: bool) -> None:
    with (
        LocalCluster(ps=2, worker_servers=1) as local,
        ParameterServerStrategy(local.cluster_resolver) as strategy,
    ):
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            network = networks()[0]
        adam = DistributedOptimizer(torch.optim.Adam(network.parameters(), lr=0.02))

        def train() -> None:
            plain([network, network], lambda _: adam)

        if in_run:
            coordinator.schedule(strategy.run, args=(train,))
        else:
            coordinator.schedule(train)
        coordinator.join()
        strategy.refresh()
        ours = in_bytes([network])
    local_network = networks()[0]
    optimizer = torch.optim.Adam(local_network.parameters(), lr=0.02)
    plain([local_network, local_network], lambda _: optimizer)
    assert ours == in_bytes([local_network])
