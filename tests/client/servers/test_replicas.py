"""Servers with several addresses, of which any may fail or fall silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import torch

from stratagem import ParameterServerStrategy, StratagemError, UnavailableError, Variable
from stratagem._cluster.tasks import ClusterSpec, Membership
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.full import a_few
from tests.relays import Relay

PATIENCE = 60


@dataclass
class TwoWays:
    """One server, which has two addresses as replicas have."""

    server: ParameterServer
    relays: list[Relay]

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{relay.port}" for relay in self.relays)

    def strategy(self, connect_seconds: float = 60.0) -> ParameterServerStrategy:
        cluster = ClusterSpec({"ps": [self.address], "worker": ["w:1"]})
        resolver = SimpleClusterResolver(cluster, task_type="worker", task_id=0)
        resolver.cluster_token = TOKEN
        return ParameterServerStrategy(resolver, connect_seconds=connect_seconds)

    def end(self, number: int) -> None:
        """Nobody listens there any more."""
        self.relays[number].__exit__()


@pytest.fixture
def ways() -> Iterator[TwoWays]:
    with ExitStack() as stack:
        server = stack.enter_context(ParameterServer(ServerSettings(token=TOKEN)))
        port = int(server.address.rpartition(":")[2])
        yield TwoWays(server, [stack.enter_context(Relay(port)) for _ in range(2)])


def counter(strategy: ParameterServerStrategy) -> Variable:
    with strategy.scope():
        return Variable(torch.tensor(0), False, name="counter")


@pytest.mark.parametrize("way", [0, 1])
def test_a_program_starts_where_one_replica_is_dead(ways: TwoWays, way: int) -> None:
    ways.end(way)
    with ways.strategy() as strategy:
        found = counter(strategy)
        found.assign_add(1)
        assert found.numpy() == 1


@a_few(
    "fault",
    [TwoWays.end, lambda ways, number: ways.relays[number].hold()],
    "a replica that is silent is left as one that has ended",
)
def test_changes_go_on_at_the_other_replica_each_once(
    ways: TwoWays, fault: Callable[[TwoWays, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    with ways.strategy() as strategy, ThreadPoolExecutor(4) as threads:
        found = counter(strategy)

        def count(number: int) -> None:
            for _ in range(200):
                found.assign_add(1)

        under_way = [threads.submit(count, number) for number in range(4)]
        while found.numpy() < 100:
            pass
        fault(ways, 0)
        for each in under_way:
            each.result(PATIENCE)
        assert found.numpy() == 800
    assert f"is served by the replica at 127.0.0.1:{ways.relays[1].port} now" in caplog.text


def test_a_program_starts_where_one_replica_answers_nothing(ways: TwoWays) -> None:
    ways.relays[0].hold()
    with ways.strategy() as strategy:
        found = counter(strategy)
        found.assign_add(1)
        assert found.numpy() == 1


def test_a_server_all_of_whose_replicas_are_dead_is_unavailable_by_name(ways: TwoWays) -> None:
    with ways.strategy(connect_seconds=1.0) as strategy:
        found = counter(strategy)
        for number in range(2):
            ways.end(number)
        with pytest.raises(UnavailableError, match=f"{ways.address}.*tried for 1 s") as failure:
            found.assign_add(1)
        assert "not known whether the request was applied" in str(failure.value)


@pytest.mark.parametrize(
    ("job", "address", "message"),
    [
        ("ps", "a:1,", "'a:1,', of which one is empty"),
        ("ps", "a:1,b:1,a:1", "'a:1,b:1,a:1', of which two are the same"),
        ("ps", "a:1,b", "the address of /job:ps/task:0 is 'b'"),
        ("worker", "a:1,b:1", "only tasks of the job ps have replicas"),
    ],
)
def test_replicas_that_cannot_be_are_refused_by_name(job: str, address: str, message: str) -> None:
    cluster = ClusterSpec({"ps": ["p:1"], "worker": ["w:1"]} | {job: [address]})
    with pytest.raises(InvalidArgumentError, match=message):
        Membership.checked(cluster, "worker", 0)


def test_a_cluster_has_the_replicas_of_a_task_as_they_were_given() -> None:
    cluster = ClusterSpec({"ps": ["a:1,b:1"], "worker": ["w:1"]})
    assert cluster.task_address("ps", 0) == "a:1,b:1"
    assert Membership.checked(cluster, "worker", 0).server_addresses == ["a:1,b:1"]
    assert ClusterSpec(cluster.as_cluster_def()) == cluster


def test_a_strategy_is_closed_while_its_server_answers_nothing(ways: TwoWays) -> None:
    strategy = ways.strategy()
    found = counter(strategy)
    for relay in ways.relays:
        relay.hold()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(found.assign_add, 1)
        while not waiting.running():
            pass
        strategy.close()
        with pytest.raises(StratagemError, match="closed"):
            waiting.result(PATIENCE)
