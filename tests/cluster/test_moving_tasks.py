"""Tasks that move between processes while programs train, some of which are killed meanwhile."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import ParameterServerStrategy, StratagemError, TaskMove, Variable
from stratagem._ps_client.session import Identity
from stratagem._ps_client.survey import ServerCalls
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from stratagem_proto.v1.servers_pb2 import DescribeServerResponse
from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR
from tests.cluster.training import PATIENCE, STEPS, WORKERS, expected, strategies, trained
from tests.deploy.processes.process_tree import python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def movable(servers: int, **others: Any) -> LocalCluster:
    return LocalCluster(
        servers, WORKERS, processes=True, movable=True, start_timeout=PATIENCE, **others
    )


@pytest.mark.parametrize(
    "consistency",
    [
        "async",
        pytest.param("bounded", marks=pytest.mark.long),
        pytest.param("sync", marks=pytest.mark.long),
    ],
)
def test_four_servers_become_two_then_four_then_one(consistency: str) -> None:
    with movable(4) as cluster:

        def move(strategy: ParameterServerStrategy) -> None:
            servers = strategy.servers
            for number in (0, 3):  # the first one, too
                assert {move.source for move in servers.drain(number)} == {number}
                cluster.kill("ps", number)
            for _ in range(2):
                assert servers.add(cluster.add_server())
            for number in (1, 2, 4):
                servers.drain(number)
                cluster.kill("ps", number)
            # Those that were added began with a task, of which nobody knows.
            assert {each.number: len(each.tasks) for each in servers.report()} == {5: 6}

        assert trained(cluster, consistency, move, (50_000,) * 4) == expected(consistency, 4)


def test_servers_that_are_stopped_give_their_tasks_to_the_others() -> None:
    with movable(3) as cluster:

        def stop(_: ParameterServerStrategy) -> None:
            for number in (0, 2):
                cluster.stop("ps", number)

        assert trained(cluster, "sync", stop, (50_000,) * 3) == expected("sync", 3)


class Adding:
    """Adds 1 to a variable of the first server, again and again, until the block ends.

    Attributes:
        added: How often it has.
    """

    def __init__(self, counter: Variable) -> None:
        self._counter, self.added = counter, 0
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Adding:
        self._adding = self._threads.submit(self._add)
        eventually(lambda: self.added > 10, PATIENCE)
        return self

    def _add(self) -> None:
        while not self._over.is_set():
            self._counter.assign_add(1)
            self.added += 1

    def await_more(self) -> None:
        """Wait until it has gone on."""
        before = self.added
        eventually(lambda: self.added > before + 10, PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads.shutdown()
        self._adding.result()


def counter_of(strategy: ParameterServerStrategy) -> Variable:
    with strategy.scope():
        return Variable(torch.tensor(0), False, name="counter")


def described(cluster: LocalCluster, number: int) -> DescribeServerResponse:
    """What a server says of itself."""
    resolver = cluster.resolver("worker", 0)
    address = resolver.cluster_spec().task_address("ps", number)
    found = ServerCalls(Identity(ROLE_OPERATOR, token=resolver.cluster_token or "")).describe(
        [address]
    )[address]
    assert isinstance(found, DescribeServerResponse)
    return found


@contextmanager
def moving(
    cluster: LocalCluster, connect_seconds: float = 60.0
) -> Iterator[tuple[Adding, ParameterServerStrategy, Callable[[], Future[Sequence[TaskMove]]]]]:
    """A program that adds, another one, and what begins to drain the first server."""
    made = strategies(cluster, connect_seconds=connect_seconds)
    with made as (adds, reads), ThreadPoolExecutor(1) as threads:
        counter = counter_of(adds)
        counter_of(reads)
        with Adding(counter) as adding:
            yield adding, reads, lambda: threads.submit(adds.servers.drain, 0, PATIENCE)
        assert int(counter.numpy()) == adding.added


def test_a_task_stays_where_it_is_if_the_server_is_killed_that_is_about_to_take_it() -> None:
    # For so long, the snapshot is left on the one that is gone.
    with movable(2) as cluster, moving(cluster, connect_seconds=5.0) as (adding, reads, drain):
        with reads.snapshot():
            draining = drain()
            eventually(lambda: described(cluster, 1).HasField("taking"), PATIENCE)
            adding.await_more()
            cluster.kill("ps", 1)
            with pytest.raises(StratagemError, match="Nothing has moved"):
                draining.result(PATIENCE)
        adding.await_more()
        assert [task.task for task in described(cluster, 0).tasks] == [0]


def test_a_task_moves_although_its_server_is_killed_and_started_again(tmp_path: Path) -> None:
    kept = {"durability": "log", "durability_folder": tmp_path}
    with movable(2, **kept) as cluster, moving(cluster) as (adding, reads, drain):
        with reads.snapshot():
            draining = drain()
            eventually(lambda: described(cluster, 1).HasField("taking"), PATIENCE)
            adding.await_more()
            cluster.kill("ps", 0)
            cluster.restart("ps", 0)
        assert draining.result(PATIENCE) == [TaskMove(0, 0, 1)]
        cluster.kill("ps", 0)
        adding.await_more()


def test_a_task_moves_although_whoever_has_asked_for_it_is_killed(tmp_path: Path) -> None:
    with movable(2) as cluster, moving(cluster) as (adding, reads, _):
        token = tmp_path / "token"
        token.touch(0o600)
        token.write_text(cluster.resolver("worker", 0).cluster_token or "")
        address = cluster.resolver("worker", 0).cluster_spec().task_address("ps", 0)
        command = ["-m", "stratagem_deploy.cli", "servers", "drain", "0", "--at", address]
        command += ["--token-file", str(token)]
        with reads.snapshot(), python(*command, output=subprocess.PIPE) as mover:
            eventually(lambda: described(cluster, 1).HasField("taking"), PATIENCE)
            mover.kill()
            mover.wait()
        eventually(lambda: not described(cluster, 0).tasks, PATIENCE)
        assert [task.task for task in described(cluster, 1).tasks] == [0, 1]
        adding.await_more()


def test_functions_of_a_coordinator_count_once_while_tasks_move() -> None:
    with (
        LocalCluster(
            2, worker_servers=2, processes=True, movable=True, start_timeout=PATIENCE
        ) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        with strategy.scope():
            counters = [Variable(torch.tensor(0), False, name=f"counter{i}") for i in range(2)]
        coordinator = ClusterCoordinator(strategy)

        def add() -> None:
            for counter in counters:
                counter.assign_add(1)

        for round_ in range(4):
            for _ in range(STEPS):
                coordinator.schedule(add)
            strategy.servers.drain(round_ % 2)
            address = cluster.resolver("worker", 0).cluster_spec().task_address("ps", round_ % 2)
            strategy.servers.add(address)
        cluster.kill("worker", 0)
        coordinator.join()
        assert [int(each.numpy()) for each in counters] == [4 * STEPS] * 2
