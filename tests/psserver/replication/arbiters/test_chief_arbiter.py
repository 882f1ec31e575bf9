"""Replicas that leave it to the chief which of them serves."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch

from stratagem._ps_client.session import handshake
from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_proto.v1.arbitration_pb2 import DESCRIPTOR, ArbitrateRequest, ChiefIntroduction
from stratagem_proto.v1.replication_pb2 import Standing
from stratagem_proto.v1.session_pb2 import ROLE_EVALUATOR, ROLE_WORKER, Role, Task
from stratagem_proto.wire.channel import open_channel
from stratagem_psserver.replication.calls import ARBITRATE
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.psserver.persistence.servers import client_of
from tests.psserver.replication.arbiters.chiefs import CHIEF, at_work, chief_of
from tests.psserver.replication.pairs import Pair, pair, report_of, standing_of
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

_SERVICE = DESCRIPTOR.services_by_name["ArbitrationService"].full_name


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path, arbiter="chief") as started:
        yield started


def await_primary(server: ParameterServer) -> None:
    eventually(lambda: standing_of(server) == Standing.STANDING_PRIMARY)


def await_trouble(server: ParameterServer, text: str) -> None:
    """Waits until a replica says why it waits."""
    eventually(lambda: re.search(text, report_of(server).trouble) is not None)


def test_nobody_serves_before_a_chief_has_called_both(both: Pair) -> None:
    first, second = both.servers.values()
    await_trouble(first, "no chief has called /job:ps/task:0.*start the program of the chief")
    with at_work(chief_of(first, second)):
        both.await_backup()


def test_replicas_go_on_without_a_chief_and_the_next_one_knows_what_they_know(both: Pair) -> None:
    first, second = both.servers.values()
    with at_work(chief_of(first, second)):
        primary, backup = both.await_backup()
    with client_of(primary) as client:
        client.create(w=torch.zeros(5))
        before = client.everything()
        with at_work(chief_of(first, second)):
            await_decisions(primary, backup)
            both.crash(primary)
            await_primary(backup)
        assert report_of(backup).view.epoch == 3
        with client_of(backup, client) as again:
            again.open()
            assert again.everything() == before


def await_decisions(*servers: ParameterServer) -> None:
    """Waits until a chief answers replicas."""
    for server in servers:
        eventually(lambda server=server: server._loop.run(_is_answered(server)))  # type: ignore[misc]


async def _is_answered(server: ParameterServer) -> bool:
    assert server._replicated is not None
    try:
        return await server._replicated._arbiter.read() is not None
    except UnavailableError:
        return False


def test_nobody_takes_over_while_the_chief_is_away(both: Pair) -> None:
    first, second = both.servers.values()
    chief = chief_of(first, second)
    with at_work(chief):
        primary, backup = both.await_backup()
    both.crash(primary)
    await_trouble(backup, "no chief has called")
    # The one that has decided before still knows.
    with at_work(chief):
        await_primary(backup)


def test_a_chief_that_knows_nothing_does_not_guess_what_a_lost_replica_knew(both: Pair) -> None:
    first, second = both.servers.values()
    with at_work(chief_of(first, second)):
        primary, backup = both.await_backup()
    index = [*both.servers.values()].index(primary)
    both.crash(primary)
    again = both.start(index)
    with at_work(chief_of(*both.servers.values())):
        lost = f"the replica at {primary.address} has ended while no chief was there.*start them"
        await_trouble(again, lost)
        assert standing_of(backup) != Standing.STANDING_PRIMARY
        # Those who start both again have a task without state.
        both.crash(backup)
        both.start(1 - index)
        both.await_backup()


def test_a_replica_that_comes_back_is_taken_in_by_the_other(both: Pair) -> None:
    with at_work(chief_of(*both.servers.values())):
        primary, backup = both.await_backup()
        for lost, left in ((primary, backup), (backup, primary)):
            index = [server.address for server in both.servers.values()].index(lost.address)
            both.crash(both.servers[index])
            await_primary(both.servers[1 - index])
            both.start(index)
            both.await_backup()
            assert left.address == both.servers[1 - index].address


def test_a_primary_that_is_stopped_hands_over(both: Pair) -> None:
    with at_work(chief_of(*both.servers.values())):
        primary, backup = both.await_backup()
        primary.stop()
        await_primary(backup)


def test_a_second_chief_is_refused_while_the_first_is_there(
    both: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    servers = both.servers.values()
    with caplog.at_level(logging.WARNING, "stratagem"), at_work(chief_of(*servers)):
        primary, backup = both.await_backup()
        with at_work(chief_of(*servers)):
            said = (
                r"/job:chief/task:0 \(chief \w{8}\) decides which replica .* cannot as well; stop"
            )
            eventually(lambda: re.search(said, caplog.text) is not None)
            both.crash(primary)
            await_primary(backup)


def call(server: ParameterServer, introduction: ChiefIntroduction) -> str:
    """Calls as a chief; returns what is said against it."""
    with open_channel(server.address) as channel:
        method: grpc.StreamStreamMultiCallable[bytes, bytes]
        method = channel.stream_stream(f"/{_SERVICE}/{ARBITRATE}")
        request = ArbitrateRequest(introduction=introduction).SerializeToString()
        with pytest.raises(grpc.RpcError) as refused:
            next(method(iter([request]), timeout=60))
    return str(refused.value.details())


def introduced(role: Role = CHIEF.role) -> ChiefIntroduction:
    asking = handshake(CHIEF, b"")
    asking.role = role
    server = Task(job="ps", index=0)
    return ChiefIntroduction(asking=asking, chief=bytes(16), server=server, replicas=2)


@pytest.mark.parametrize("role", [ROLE_WORKER, ROLE_EVALUATOR])
def test_who_is_not_the_chief_does_not_decide(both: Pair, role: Role) -> None:
    assert "Arbitrate is not for /job:chief/task:0" in call(both.servers[0], introduced(role))


def test_a_chief_of_another_cluster_is_refused_by_name(both: Pair) -> None:
    other_task, few, nameless, stranger = (introduced() for _ in range(4))
    other_task.server.index = 3
    few.replicas = 1
    nameless.chief = b"short"
    stranger.asking.proof.mac = b"guessed"
    server = both.servers[0]
    assert "takes /job:ps/task:0 for /job:ps/task:3" in call(server, other_task)
    assert "lists 1 addresses of /job:ps/task:0, which has --replicas 2" in call(server, few)
    assert "has no number of 16 bytes" in call(server, nameless)
    assert "without a cluster token, which the client has" in call(server, stranger)


def test_replicas_with_another_arbiter_take_no_call_of_a_chief(tmp_path: Path) -> None:
    with pair(tmp_path) as both, at_work(chief_of(*both.servers.values())):
        both.await_backup()
        assert "Method not found" in call(both.servers[0], introduced())


def test_states_on_disk_need_an_arbiter_that_outlives_programs(tmp_path: Path) -> None:
    settings = ServerSettings(
        replicas=2, arbiter="chief", durability="log", durability_folder=str(tmp_path)
    )
    with pytest.raises(InvalidArgumentError, match="Give another arbiter, or --durability none"):
        ParameterServer(settings).start()


def test_a_chief_does_not_keep_where_tasks_move() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot move to another server with --arbiter"):
        ServerSettings(arbiter="chief")
