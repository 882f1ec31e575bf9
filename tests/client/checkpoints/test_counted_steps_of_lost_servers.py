"""Steps that a program counts, where servers are lost as well as the processes that count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch

from stratagem import DistributedOptimizer, ParameterServerStrategy
from tests.client.checkpoints.test_counted_steps import Counter, Death, build
from tests.client.clusters import Cluster, running
from tests.client.servers.remembering import LoggedServer
from tests.client.servers.replicated import ReplicatedServer
from tests.full import a_few
from tests.psserver.moves.servers import MovableServers, movable

Lose = Callable[[], None]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def of_logs(folder: Path, stack: ExitStack) -> tuple[Cluster, list[Lose]]:
    """Servers with logs, each of which is killed and started again."""
    servers = []
    for task in range(2):
        root = folder / str(task)
        root.mkdir()
        servers.append(LoggedServer(root, stack, task=task))

    def restart(server: LoggedServer) -> None:
        server.kill()
        server.start()

    return Cluster([one.address for one in servers], 1), [partial(restart, one) for one in servers]


def of_replicas(folder: Path, stack: ExitStack) -> tuple[Cluster, list[Lose]]:
    """Servers with backups, which take over."""
    servers = []
    for task in range(2):
        (folder / str(task)).mkdir()
        servers.append(ReplicatedServer(folder / str(task), stack, task))

    def take_over(server: ReplicatedServer) -> None:
        ended = server.end(server.primary)
        server.start(ended)
        server.await_backup()

    return Cluster([str(one.where) for one in servers], 1), [
        partial(take_over, one) for one in servers
    ]


def of_moves(folder: Path, stack: ExitStack) -> tuple[Cluster, list[Lose]]:
    """Servers whose tasks move from one to the other."""
    servers: MovableServers = stack.enter_context(movable(folder))
    places = [0, 1]

    def move(task: int) -> None:
        places[task] = 1 - places[task]
        servers.move(task, places[task])

    return Cluster(servers.addresses, 1), [partial(move, task) for task in range(2)]


def add(cluster: Cluster, stop: int, before: Callable[[int, int], None]) -> list[float]:
    """Adds 1 to a variable on each of two servers, twice in each step that is left."""
    with cluster.strategy() as strategy:
        variables = build(strategy)
        data = Counter()
        strategy.register_for_checkpointing("data", data)
        for number in strategy.steps(stop):
            assert data.count == number, "the data goes on where the steps do"
            data.count += 1
            for change, variable in enumerate(2 * variables):
                before(number, change)
                variable.assign_add(1.0)
        return [float(variable.numpy()) for variable in variables]


Kind = Callable[[Path, ExitStack], tuple[Cluster, list[Lose]]]


@a_few(
    "kind",
    [of_logs, of_replicas, pytest.param(of_moves, marks=pytest.mark.cluster)],
    "servers that follow others take their steps by the same account",
)
def test_a_step_is_applied_once_where_servers_are_lost_in_it_and_then_its_worker(
    tmp_path: Path, stack: ExitStack, kind: Kind
) -> None:
    cluster, losses = kind(tmp_path, stack)
    # Before which change of which step which servers are lost, and before which the worker dies.
    lost = {(0, 0): [0], (1, 1): [1], (2, 2): [0], (3, 3): [1], (4, 3): [0, 1]}
    deaths = {(1, 3), (2, 2), (3, 3), (4, 3)}

    def before(number: int, position: int) -> None:
        change = number, position
        for server in lost.pop(change, ()):
            losses[server]()
        if change in deaths:
            deaths.remove(change)
            raise Death

    while deaths:
        with pytest.raises(Death):
            add(cluster, 6, before)
    losses[0]()
    assert add(cluster, 6, before) == [12.0, 12.0]
    assert add(cluster, 7, before) == [14.0, 14.0]


@a_few(
    "kind,consistency",
    [
        (of_logs, "sync"),
        (of_logs, "in flight"),
        (of_logs, "async"),
        (of_logs, "bounded"),
        (of_replicas, "sync"),
        (of_replicas, "async"),
        (of_replicas, "bounded"),
        (of_replicas, "in flight"),
    ],
    "two ways to step that differ most, on servers that come back",
    2,
)
def test_an_optimizers_step_is_taken_once_where_servers_are_lost_and_then_its_worker(
    tmp_path: Path, stack: ExitStack, kind: Kind, consistency: str
) -> None:
    cluster, losses = kind(tmp_path, stack)
    chosen = {"pushes_in_flight": 1} if consistency == "in flight" else {"consistency": consistency}
    for death in range(4):
        with cluster.strategy(**chosen) as strategy:
            with strategy.scope():
                module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
            sgd = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.5)
            optimizer = DistributedOptimizer(sgd)

            def step() -> None:
                for parameter in module:  # noqa: B023 - called at once
                    parameter.grad = -torch.ones(1)
                optimizer.step()  # noqa: B023 - called at once

            for number in strategy.steps(2 * death + 2):
                if number % 3 == 1:
                    # A log is copied while its server still answers what is in flight.
                    strategy.refresh()
                    losses[death % 2]()
                strategy.run(step)
            strategy.refresh()
            found = [float(one.detach()) for one in module]
        losses[1 - death % 2]()
    expected = torch.zeros(1, requires_grad=True)
    plain = torch.optim.SGD([expected], lr=1.0, momentum=0.5)
    for _ in range(8):
        expected.grad = -torch.ones(1)
        plain.step()
    assert found == 2 * [float(expected.detach())]


def train(
    strategy: ParameterServerStrategy, folder: Path, stop: int, between: Callable[[int], None]
) -> list[float]:
    """Adds 1 to all on each of two servers; calls a function in the midst of each step."""
    variables = build(strategy)
    with strategy.scope():
        module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
    optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    if (folder / "latest").exists():
        strategy.restore(folder)

    def step() -> None:
        for parameter in module:
            parameter.grad = -torch.ones(1)
        optimizer.step()

    for number in strategy.steps(stop):
        strategy.run(step)
        variables[0].assign_add(1.0)
        between(number)
        variables[1].assign_add(1.0)
    strategy.barrier()
    return [float(one.numpy()) for one in variables] + [float(one.detach()) for one in module]


@a_few(
    "consistency,ahead", [("async", 2), ("sync", 0)], "steps are counted before the mode is asked"
)
def test_each_worker_goes_on_in_its_step_where_servers_begin_with_a_checkpoint(
    tmp_path: Path, consistency: str, ahead: int
) -> None:
    within, saved = threading.Event(), threading.Event()

    def first(strategy: ParameterServerStrategy, worker: int) -> None:
        def save_in_the_midst(number: int) -> None:
            if worker and number == 3:
                within.set()
                assert saved.wait(60)
            elif not worker and number == 3 - ahead:
                assert within.wait(60)
                strategy.save(tmp_path)
                saved.set()

        train(strategy, tmp_path, 6, save_in_the_midst)

    def again(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        return train(strategy, tmp_path, 8, lambda number: None)

    with running(2, num_workers=2) as cluster:
        cluster.run(first, consistency=consistency)
    with running(2, num_workers=2, restore=str(tmp_path)) as cluster:
        results = cluster.run(again, consistency=consistency)
    steps = 8.0 if consistency == "sync" else 16.0
    assert results == 2 * [[16.0, 16.0, steps, steps]]
