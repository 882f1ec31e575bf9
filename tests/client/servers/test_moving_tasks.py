"""Programs that train while tasks move between servers of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ParameterServerStrategy,
    PermissionDeniedError,
    TaskMove,
    UnavailableError,
    Variable,
    partitioners,
)
from stratagem_psserver.server import ParameterServer
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.psserver.moves.servers import MovableServers, movable
from tests.waiting import eventually

pytestmark = [pytest.mark.unlogged, pytest.mark.first]

WORKERS, STEPS, SERVERS = 3, 40, 3


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[MovableServers]:
    with movable(tmp_path, SERVERS) as made:
        yield made


class Moving:
    """Moves tasks to and fro in a thread of its own, for as long as the block lasts."""

    def __init__(self, servers: MovableServers) -> None:
        self._servers = servers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._move)
        self.moves = 0

    def _move(self) -> None:
        # Each task, the first one included, comes to each server.
        for number in cycle(range(SERVERS)):
            for task in range(SERVERS):
                if self._over.is_set():
                    return
                self._servers.move(task, (number + task) % SERVERS)
                self.moves += 1

    def __enter__(self) -> Moving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def summed(strategy: ParameterServerStrategy, moving: Moving) -> list[float]:
    """Takes steps that each add 1 to parameters on all servers, until there were moves enough."""
    with strategy.scope():
        module = torch.nn.Module()
        for size in (1, 10, 300_000, 7):
            module.register_parameter(f"p{size}", torch.nn.Parameter(torch.zeros(size)))
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = -torch.ones_like(parameter)
        optimizer.step()

    for number in range(STEPS):
        strategy.run(step)
        if number == STEPS // 2:
            eventually(lambda: moving.moves > 2 * SERVERS)
    strategy.barrier("trained")
    strategy.refresh()
    values = [each.detach() for each in module.parameters()]
    return [float(end) for each in values for end in (each.min(), each.max())]


@pytest.mark.parametrize(
    "consistency",
    [
        pytest.param("async", marks=pytest.mark.full("steps of several workers are counted, too")),
        pytest.param("bounded", marks=pytest.mark.long),
        "sync",
    ],
)
def test_each_step_counts_once_while_tasks_move(servers: MovableServers, consistency: str) -> None:
    cluster = Cluster(servers.addresses, WORKERS)
    with Moving(servers) as moving:
        found = cluster.run(lambda s, _: summed(s, moving), consistency=consistency)
    expected = STEPS if consistency == "sync" else WORKERS * STEPS
    assert found == [[expected] * 8] * WORKERS


class Recommender(torch.nn.Module):
    """Tables of both kinds, one of which evicts rows, and a parameter that is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(1000, 4, sparse=True)
        self.items = stratagem.nn.DynamicEmbedding(4, admit_after=2, max_idle=4)
        self.dense = torch.nn.Linear(4, 30)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.dense(self.users(users) * self.items(items))
        return rows.square().mean()


def learned(
    addresses: list[str],
    kind: Callable[..., torch.optim.Optimizer],
    between: Any = lambda number: None,
) -> list[torch.Tensor]:
    """What a lone worker learns, in which nothing is random but for the seed."""
    torch.manual_seed(1)
    with Cluster(addresses, 1).strategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(2)
    ) as strategy:
        with strategy.scope():
            model = Recommender()
        optimizer = stratagem.DistributedOptimizer(kind(model.parameters(), lr=0.1))

        def step(users: torch.Tensor, items: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(users, items).backward()
            optimizer.step()

        for number in range(24):
            between(number)
            strategy.run(step, args=(torch.randint(1000, (8,)), torch.randint(40, (8,))))
        keys = torch.cat([*model.items.keys()]).sort().values
        parts = [model.users(torch.arange(1000)), model.items(keys), *model.dense.parameters()]
        return [keys, *(part.detach().clone() for part in parts)]


@pytest.mark.full("each step counts once while tasks move")
@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.Adam,
        pytest.param(
            stratagem.optim.RowWiseAdagrad,
            marks=pytest.mark.full("state of a row moves as state of an element does"),
        ),
    ],
)
def test_a_moved_task_learns_the_same_bytes(
    kind: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        (tmp_path / "moved").mkdir()
        servers = stack.enter_context(movable(tmp_path / "moved", SERVERS))
        found = learned(
            servers.addresses,
            kind,
            lambda number: servers.move(number % SERVERS, (number // SERVERS + number) % SERVERS),
        )
        (tmp_path / "still").mkdir()
        still = stack.enter_context(movable(tmp_path / "still", SERVERS))
        expected = learned(still.addresses, kind)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_program_that_comes_later_finds_a_task_whose_first_server_is_gone(
    servers: MovableServers,
) -> None:
    cluster = Cluster(servers.addresses, 1)
    with cluster.strategy() as strategy:
        with strategy.scope():
            variables = [Variable(torch.tensor(i), False, name=f"v{i}") for i in range(SERVERS)]
        strategy.servers.drain(0)
    servers.servers[0].stop(grace=0)
    with cluster.strategy() as strategy:
        with strategy.scope():
            variables = [Variable(torch.tensor(9), False, name=f"v{i}") for i in range(SERVERS)]
        assert [int(each.numpy()) for each in variables] == [*range(SERVERS)]


def test_tasks_are_listed_where_servers_may_be_one_day(tmp_path: Path) -> None:
    with movable(tmp_path, tasks=5, servers=2) as servers:
        # Of the other three, no server is there, nor has its name an address.
        places = [*servers.addresses, "127.0.0.1:9", "ps-3.invalid:2222", "127.0.0.1:9"]
        with Cluster(places, 1).strategy() as strategy:
            with strategy.scope():
                variables = [Variable(torch.tensor(0), False, name=f"v{i}") for i in range(5)]
            assert tasks_of(strategy) == {0: [0, 2, 4], 1: [1, 3]}
            added = servers.start(2)
            assert servers.tasks(2) == []
            strategy.servers.add(added.address)
            assert len(servers.tasks(2)) == 1
            for each in variables:
                each.assign_add(1)
            assert [int(each.numpy()) for each in variables] == [1] * 5


@pytest.mark.full("a program that comes later finds the task")
def test_an_idle_program_follows_before_the_server_ends(servers: MovableServers) -> None:
    with Cluster(servers.addresses, 1).strategy() as strategy:
        with strategy.scope():
            variables = [Variable(torch.tensor(i), False, name=f"v{i}") for i in range(SERVERS)]
        # Nobody asks for a value meanwhile: heartbeats find the way.
        for number in (0, 1):
            strategy.servers.drain(number)
        for number in (0, 1):
            servers.servers[number].stop(grace=0)
        assert [int(each.numpy()) for each in variables] == [*range(SERVERS)]


def test_checkpoints_and_snapshots_are_of_one_moment_while_tasks_move(
    servers: MovableServers, tmp_path: Path
) -> None:
    with Cluster(servers.addresses, 1).strategy() as strategy, Moving(servers) as moving:
        with strategy.scope():
            pair = [Variable(torch.tensor(0), False, name=f"v{i}") for i in range(SERVERS)]
        for number in range(6):
            for each in pair:
                each.assign_add(1)
            strategy.save(tmp_path / "checkpoints").result()
            with strategy.snapshot():
                assert [int(each.numpy()) for each in pair] == [number + 1] * SERVERS
        eventually(lambda: moving.moves > SERVERS)
        for each in pair:
            each.assign(torch.tensor(100))
        strategy.restore(tmp_path / "checkpoints")
        assert [int(each.numpy()) for each in pair] == [6] * SERVERS


def tasks_of(strategy: ParameterServerStrategy) -> dict[int, list[int]]:
    return {
        each.number: [load.task for load in each.tasks] for each in strategy.servers.report(0.1)
    }


@contextmanager
def filled(servers: MovableServers) -> Iterator[ParameterServerStrategy]:
    """A strategy with a variable of the same size on each server."""
    with Cluster(servers.addresses, 1).strategy() as strategy:
        with strategy.scope():
            strategy.kept = [  # type: ignore[attr-defined]
                Variable(torch.zeros(1000), False, name=f"v{i}") for i in range(SERVERS)
            ]
        yield strategy


@pytest.mark.full("the command that does so has its own test")
def test_servers_are_drained_added_and_rebalanced(servers: MovableServers) -> None:
    with filled(servers) as strategy:
        assert strategy.servers.drain(2) == [TaskMove(2, 2, 0)]
        assert tasks_of(strategy) == {0: [0, 2], 1: [1], 2: []}
        assert strategy.servers.rebalance() == []
        assert strategy.servers.drain(1) == [TaskMove(1, 1, 0)]
        assert tasks_of(strategy) == {0: [0, 1, 2], 1: [], 2: []}
        (move,) = strategy.servers.add(servers.addresses[1])
        assert (move.source, move.target) == (0, 1)
        added = servers.start(SERVERS)
        (move,) = strategy.servers.add(added.address)
        assert (move.source, move.target) == (0, SERVERS)
        assert strategy.servers.rebalance() == []


@pytest.mark.full("refusals are those of tests/psserver/moves")
def test_what_cannot_be_is_refused_and_changes_nothing(
    servers: MovableServers, tmp_path: Path
) -> None:
    with filled(servers) as strategy:
        with pytest.raises(NotFoundError, match="there is no server 7; there are 0 at"):
            strategy.servers.drain(7)
        with pytest.raises(InvalidArgumentError, match="no task moves at 0 bytes per second"):
            strategy.servers.drain(2, bytes_per_second=0)
        with pytest.raises(FailedPreconditionError, match="no server has two tasks with variables"):
            strategy.servers.add(servers.start(SERVERS).address)
        with pytest.raises(UnavailableError):
            strategy.servers.add("127.0.0.1:1")
        strategy.servers.drain(0)
        strategy.servers.drain(1)
        before = tasks_of(strategy)
        other = tmp_path / "other"
        other.mkdir()
        with (
            movable(other, 1) as strangers,
            pytest.raises(FailedPreconditionError, match="has another --arbiter"),
        ):
            strategy.servers.add(strangers.addresses[0])
        with (
            ParameterServer(replace(servers.servers[0].settings, bind="127.0.0.1:0")) as double,
            pytest.raises(AlreadyExistsError, match="has number 0, too"),
        ):
            strategy.servers.add(double.address)
        unlike = servers.start(SERVERS + 1, failover_seconds=2.0)
        with pytest.raises(FailedPreconditionError, match="Nothing has moved") as refused:
            strategy.servers.add(unlike.address)
        assert "has --failover-seconds 2, but the primary 3" in str(refused.value)
        unlike.stop(grace=0)
        assert {n: tasks for n, tasks in tasks_of(strategy).items() if n <= SERVERS} == before


@pytest.mark.full("roles of requests are in tests/psserver/test_roles.py")
def test_only_the_chief_moves_tasks_and_every_task_may_look(servers: MovableServers) -> None:
    cluster = Cluster(servers.addresses, 2)
    with filled(servers) as chief, cluster.strategy(1) as worker:
        before = tasks_of(chief)
        assert tasks_of(worker) == before
        with pytest.raises(PermissionDeniedError, match="not for /job:worker/task:1"):
            worker.servers.drain(2)
        assert not servers.described(2).is_draining
        assert tasks_of(chief) == before
        assert chief.servers.drain(2) == [TaskMove(2, 2, 0)]


@pytest.mark.full("refusals are those of tests/psserver/moves")
def test_the_last_server_is_not_drained(servers: MovableServers) -> None:
    with filled(servers) as strategy:
        for number in (1, 2):
            strategy.servers.drain(number)
        with pytest.raises(FailedPreconditionError, match="server 0 is the last one"):
            strategy.servers.drain(0)
        assert tasks_of(strategy) == {0: [0, 1, 2], 1: [], 2: []}


def test_nothing_is_moved_while_a_task_is_about_to_move(servers: MovableServers) -> None:
    with filled(servers) as strategy:
        source = servers.servers[0]
        source._state.held.hold(b"someone", b"cut", source._state.store)
        taking = threading.Thread(target=lambda: servers.move(0, 1))
        taking.start()
        try:
            eventually(lambda: servers.described(1).HasField("taking"))
            with pytest.raises(FailedPreconditionError, match="server 1 is about to take"):
                strategy.servers.rebalance()
            with pytest.raises(FailedPreconditionError, match="server 1 is about to take"):
                strategy.servers.drain(2)
        finally:
            source._state.held.release(b"someone")
            taking.join()
        assert tasks_of(strategy) == {0: [], 1: [0, 1], 2: [2]}


def test_servers_without_an_arbiter_keep_their_tasks() -> None:
    with (
        ParameterServer(_plain()) as server,
        Cluster([server.address], 1).strategy() as strategy,
        pytest.raises(FailedPreconditionError, match="Start all of them with the same --arbiter"),
    ):
        strategy.servers.report()


def _plain() -> Any:
    from stratagem_psserver.settings import ServerSettings

    return ServerSettings(token=TOKEN)


def test_a_strategy_without_a_cluster_has_no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(FailedPreconditionError, match="this strategy has no cluster"):
        _ = ParameterServerStrategy().servers
