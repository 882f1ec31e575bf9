"""Clients of a server whose primary ends, and what they do not do to its backup."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import ParameterServerStrategy, UnavailableError, Variable
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.pending import Retries, SurvivedRequests
from stratagem._ps_client.requests.updates import step
from stratagem._ps_client.requests.variables import Writing, assign
from stratagem_proto.errors import FailedPreconditionError, NotPrimaryError
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_psserver.server import ParameterServer
from stratagem_rpc.sockets.client import broken
from tests.client.clusters import Cluster
from tests.client.servers.replicated import ReplicatedServer
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

PATIENCE = 120


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def server(tmp_path: Path, stack: ExitStack) -> ReplicatedServer:
    return ReplicatedServer(tmp_path, stack)


def counter(strategy: ParameterServerStrategy) -> Variable:
    with strategy.scope():
        return Variable(torch.tensor(0), False, name="counter")


def connection(strategy: ParameterServerStrategy) -> Connection:
    assert isinstance(strategy.extended, ParameterServerExtended)
    return strategy.extended._store.servers._connections[0]


@pytest.mark.parametrize("standing", ["primary", "backup"])
def test_a_cluster_that_lists_one_of_the_replicas_is_refused(
    server: ReplicatedServer, standing: str
) -> None:
    found = server.view.primary if standing == "primary" else server.view.backup
    with (
        pytest.raises(FailedPreconditionError, match="is one replica of several"),
        Cluster([found.address], 1).strategy() as strategy,
    ):
        counter(strategy)


class Work:
    """What a server works on, from now on, until it ends."""

    def __init__(self, server: ParameterServer) -> None:
        self.begun, self._ends, self._server = threading.Event(), False, server
        state: Any = server._state
        state.compute.run = self._endlessly

    async def _endlessly(self, *_: object) -> None:
        self.begun.set()
        while not self._ends:
            await asyncio.sleep(0.01)
        raise UnavailableError("the server has ended")

    def end(self) -> None:
        """Ends the server with what it works on."""
        self._ends = True
        self._server.stop(0)


def test_a_program_goes_on_with_each_replica_by_its_sockets(
    server: ReplicatedServer, stack: ExitStack
) -> None:
    strategy = stack.enter_context(server.strategy())
    found = counter(strategy)
    ways = [connection(strategy).route.way]
    for number in range(3):
        found.assign_add(1)
        ended = server.end(server.primary)
        found.assign_add(1)
        assert found.numpy() == 2 * (number + 1)
        eventually(lambda: connection(strategy).route.way != "grpc")
        ways.append(connection(strategy).route.way)
        server.start(ended)
        server.await_backup()
    assert ways == ["unix"] * 4


def test_a_program_that_knows_only_of_the_backup_finds_the_primary(
    server: ReplicatedServer, stack: ExitStack
) -> None:
    server.start(server.end(server.primary))
    server.await_backup()
    assert server.view.primary.index == 1
    strategy = stack.enter_context(server.strategy())
    found = counter(strategy)
    found.assign_add(1)
    assert connection(strategy).route.address == server.where.replicas[1]


def updates_of(server: ReplicatedServer) -> int:
    """How many updates the primary has begun."""
    status = server.primary._loop.run(server.primary._status_service().status(), PATIENCE)
    return sum(
        method.in_progress + sum(method.ended.values())
        for method in status.methods
        if method.method == "Update"
    )


def test_a_new_kind_of_change_waits_for_a_backup_where_it_may_have_ended_the_primary(
    server: ReplicatedServer, stack: ExitStack
) -> None:
    strategy = stack.enter_context(server.strategy())
    threads = stack.enter_context(ThreadPoolExecutor(1))
    found = counter(strategy)
    ended, work = server.running.index(server.primary), Work(server.primary)

    def double() -> None:
        strategy.extended.update(found, lambda value: value.assign_add(2))

    doubling = threads.submit(double)
    assert work.begun.wait(PATIENCE)
    work.end()
    route = connection(strategy).route
    eventually(lambda: route.takeovers == 1 and not route.has_backup)
    assert updates_of(server) == 0
    assert not doubling.done()
    server.start(ended)
    doubling.result(PATIENCE)
    assert found.numpy() == 2


def test_a_kind_of_change_that_is_known_goes_to_the_new_primary_at_once(
    server: ReplicatedServer, stack: ExitStack
) -> None:
    strategy = stack.enter_context(server.strategy())
    threads = stack.enter_context(ThreadPoolExecutor(1))
    found = counter(strategy)
    found.assign_add(1)
    work = Work(server.primary)
    adding = threads.submit(found.assign_add, 1)
    assert work.begun.wait(PATIENCE)
    work.end()
    adding.result(PATIENCE)
    assert found.numpy() == 2
    assert not server.view.HasField("backup")


def test_a_new_kind_of_change_is_given_up_by_name_if_no_backup_comes(
    server: ReplicatedServer, stack: ExitStack
) -> None:
    strategy = stack.enter_context(server.strategy(connect_seconds=5.0))
    threads = stack.enter_context(ThreadPoolExecutor(1))
    found = counter(strategy)
    work = Work(server.primary)

    def double() -> None:
        strategy.extended.update(found, lambda value: value.assign_add(2))

    doubling = threads.submit(double)
    assert work.begun.wait(PATIENCE)
    work.end()
    with pytest.raises(UnavailableError, match="it may be what ended the one before"):
        doubling.result(PATIENCE)
    assert found.numpy() == 0


def refusal_by(primary: str, epoch: int) -> NotPrimaryError:
    """What a replica says that is not the primary, as far as it knows."""
    refusal = NotPrimaryError("this is the backup")
    refusal.primary, refusal.epoch = primary, epoch
    return refusal


def test_what_a_replica_believed_in_the_past_or_of_itself_is_not_followed(
    server: ReplicatedServer, stack: ExitStack
) -> None:
    strategy = stack.enter_context(server.strategy())
    counter(strategy)
    route = connection(strategy).route
    for _ in range(2):
        ended = server.end(server.primary)
        server.start(ended)
        server.await_backup()
        assert route.find(route.transport, UnavailableError("reset"))
        assert route.address == server.view.primary.address
        takeovers = route.takeovers
        (other,) = {*server.where.replicas} - {route.address}
        assert route.find(route.transport, refusal_by(other, 1))
        assert route.find(route.transport, refusal_by(route.address, 1000))
        assert route.address == server.view.primary.address
        assert route.takeovers == takeovers


def test_a_backup_that_joins_is_no_takeover(server: ReplicatedServer, stack: ExitStack) -> None:
    strategy = stack.enter_context(server.strategy())
    counter(strategy)
    route = connection(strategy).route
    assert route.find(None, UnavailableError("reset"))
    (backup,) = {0, 1} - {server.view.primary.index}
    server.end(server.running[backup])
    eventually(lambda: not server.view.HasField("backup"))
    assert route.find(None, UnavailableError("reset"))
    assert not route.has_backup
    server.start(backup)
    server.await_backup()
    assert route.find(None, UnavailableError("reset"))
    assert (route.has_backup, route.takeovers) == (True, 0)


ADD = assign([Writing("counter", ASSIGN_MODE_ADD, torch.tensor(1))])
LARGER = assign([Writing("table", ASSIGN_MODE_ADD, torch.zeros(1000))])
STEP = step(OptimizerProgram(), [])


def test_what_was_under_way_at_two_ends_is_not_sent_to_a_third_replica() -> None:
    repetition = Retries(ADD, "/job:ps/task:0 at a:1,b:1", 60.0, replicated=True)
    for takeover in range(2):
        repetition.require_harmless((b"run", takeover))
        error = UnavailableError("reset")
        error.__cause__ = broken(ConnectionResetError("reset"))
        repetition.require_passing(error, (b"run", takeover), has_room=True)
    with pytest.raises(Exception, match="ended 2 times while Assign was under way"):
        repetition.require_harmless((b"run", 2))


def test_a_refusal_of_a_backup_is_no_end() -> None:
    repetition = Retries(ADD, "/job:ps/task:0 at a:1,b:1", 60.0, replicated=True)
    refusal = NotPrimaryError("this is the backup")
    refusal.__cause__ = broken(ConnectionResetError("reset"))
    repetition.require_passing(refusal, (b"run", 0), has_room=True)
    assert not repetition.is_suspect((b"run", 1))


def test_pauses_stay_short_while_a_backup_may_take_over() -> None:
    repetition = Retries(ADD, "/job:ps/task:0 at a:1,b:1", 60.0, replicated=True)
    error = UnavailableError("reset")
    pauses = [repetition.pause(error, float(now)) for now in range(20)]
    assert pauses[0] == 0.05
    assert max(pauses) == 0.1


def test_a_kind_of_change_is_known_by_its_method_program_and_size() -> None:
    experience = SurvivedRequests()
    assert not experience.covers(ADD)
    experience.note(ADD)
    assert experience.covers(ADD)
    assert not experience.covers(LARGER)
    assert not experience.covers(STEP)
    experience.note(LARGER)
    assert experience.covers(ADD)
    assert experience.covers(LARGER)
