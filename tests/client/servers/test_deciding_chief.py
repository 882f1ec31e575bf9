"""A program that decides, as the chief, which replica of a server serves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from stratagem import ParameterServerStrategy, Variable
from stratagem_deploy.clusters.servers import replica_standings
from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.replication_pb2 import STANDING_BACKUP, STANDING_PRIMARY
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


class ChiefsServer:
    """The two replicas of one task, which leave it to the chief which of them serves."""

    def __init__(self, stack: ExitStack) -> None:
        self.where = stack.enter_context(ReservedAddresses(2))
        self.running = [
            stack.enter_context(ParameterServer(self._settings(number))) for number in range(2)
        ]
        self.cluster = Cluster([str(self.where)], 2)

    def _settings(self, number: int) -> ServerSettings:
        return ServerSettings(
            bind=self.where.replicas[number],
            token=TOKEN,
            replicas=2,
            replica=number,
            arbiter="chief",
        )

    def standings(self) -> list[int]:
        """What the replicas are."""
        found = replica_standings(self.where.replicas, TOKEN, 5.0)
        return [one.standing for one in found if one is not None]

    def await_backup(self) -> None:
        eventually(lambda: {STANDING_PRIMARY, STANDING_BACKUP} == {*self.standings()})

    def end_primary(self) -> None:
        """Ends it at once, without handing over."""
        self.running[self.standings().index(STANDING_PRIMARY)].stop(0)


@pytest.fixture
def server() -> Iterator[ChiefsServer]:
    with ExitStack() as stack:
        yield ChiefsServer(stack)


def counter_of(strategy: ParameterServerStrategy, name: str = "counter") -> Variable:
    with strategy.scope():
        return Variable(torch.tensor(0), False, name=name)


def test_a_program_trains_on_past_the_end_of_a_primary(server: ChiefsServer) -> None:
    with server.cluster.strategy() as strategy:
        counter = counter_of(strategy)
        counter.assign_add(1)
        server.await_backup()
        server.end_primary()
        counter.assign_add(1)
        assert int(counter.numpy()) == 2


def test_strategies_of_a_program_decide_as_one(
    server: ChiefsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stratagem"):
        with server.cluster.strategy() as strategy:
            counter_of(strategy).assign_add(1)
            server.await_backup()
            with server.cluster.strategy() as another:
                counter_of(another, "other").assign_add(1)
        # What they have decided is known to the next one, though a replica has ended meanwhile.
        server.end_primary()
        with server.cluster.strategy() as strategy:
            assert int(counter_of(strategy, "other").numpy()) == 1
    assert "cannot decide" not in caplog.text


def test_a_worker_that_is_not_the_chief_does_not_decide(server: ChiefsServer) -> None:
    with (
        server.cluster.strategy(1, connect_seconds=2) as strategy,
        pytest.raises(UnavailableError, match="serves no clients"),
    ):
        strategy.barrier("never", timeout=1)
