"""Programs that wait for their turn to coordinate the same servers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

import stratagem
from stratagem._coordinator.standby import Candidate
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.session import Identity
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.errors import CancelledError, InvalidArgumentError, SupersededError
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_COORDINATOR, ROLE_WORKER, Role
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import Deadlines
from tests.client.connections import add, make
from tests.conftest import TOKEN
from tests.waiting import eventually

FIRST, SECOND = os.urandom(16), os.urandom(16)


@pytest.fixture
def servers() -> Iterator[list[ParameterServer]]:
    with ExitStack() as stack:
        places = stack.enter_context(ReservedAddresses(2)).replicas
        settings = [
            ServerSettings(each, task=task, token=TOKEN) for task, each in enumerate(places)
        ]
        yield [stack.enter_context(ParameterServer(each)) for each in settings]


class Programs:
    """Candidates for two servers."""

    def __init__(self, servers: list[ParameterServer]) -> None:
        self._servers = servers
        self._groups: list[ServerGroup] = []

    def candidate(self, program: bytes) -> Candidate:
        identity = Identity(ROLE_COORDINATOR, token=TOKEN, outlives_servers=True)
        group = ServerGroup([each.address for each in self._servers], identity)
        self._groups.append(group)
        return Candidate(group, program, f"program {program.hex()[:4]}")

    def close(self) -> None:
        for group in self._groups:
            group.close()


@pytest.fixture
def programs(servers: list[ParameterServer]) -> Iterator[Programs]:
    made = Programs(servers)
    yield made
    made.close()


@contextmanager
def connection_of(
    server: ParameterServer, program: bytes, role: Role = ROLE_CHIEF
) -> Iterator[Connection]:
    """A connection of the strategy of a program, or of a worker that runs its functions."""
    identity = Identity(role, "chief", 0, TOKEN, program=program)
    connection = Connection(server.settings.task, server.address, identity, Deadlines(connect=10))
    try:
        yield connection
    finally:
        connection.close()


def begun(candidate: Candidate) -> threading.Thread:
    """A thread in which a candidate waits for its turn."""
    thread = threading.Thread(target=candidate.await_turn, daemon=True)
    thread.start()
    return thread


def waits_at(server: ParameterServer) -> bool:
    return any("the place" in wait.subject for wait in server._state.waits.waiters())


def test_the_second_program_waits_until_the_first_gives_its_place_up(
    servers: list[ParameterServer], programs: Programs
) -> None:
    first, second = programs.candidate(FIRST), programs.candidate(SECOND)
    first.await_turn()
    waiting = begun(second)
    eventually(lambda: waits_at(servers[0]))
    first.leave(finished=False)
    waiting.join(20)
    assert [one._state.succession.incumbent.program for one in servers] == [SECOND, SECOND]
    second.close()


@pytest.mark.parametrize("role", [ROLE_CHIEF, ROLE_WORKER])
def test_servers_refuse_a_program_that_was_not_heard_of_and_its_workers(
    servers: list[ParameterServer], programs: Programs, role: Role
) -> None:
    first, second = programs.candidate(FIRST), programs.candidate(SECOND)
    first.await_turn()
    with ExitStack() as stack:
        theirs = [stack.enter_context(connection_of(each, FIRST)) for each in servers]
        for connection in theirs:
            make(connection, "v", torch.zeros(2))
        first.close()  # as if it had ended without a word
        for connection in theirs:
            connection.close()
        second.await_turn()
        late = [stack.enter_context(connection_of(each, FIRST, role)) for each in servers]
        for connection in late:
            with pytest.raises(SupersededError, match=f"program {SECOND.hex()[:4]} coordinates"):
                add(connection, "v", torch.ones(2))
        present = stack.enter_context(connection_of(servers[0], SECOND))
        assert add(present, "v", torch.ones(2)) == 2
    second.close()


def test_a_session_of_before_is_refused_too(
    servers: list[ParameterServer], programs: Programs
) -> None:
    first, second = programs.candidate(FIRST), programs.candidate(SECOND)
    first.await_turn()
    with connection_of(servers[1], FIRST) as theirs:
        make(theirs, "v", torch.zeros(2))
        first.leave(finished=False)
        second.await_turn()
        with pytest.raises(SupersededError):
            add(theirs, "v", torch.ones(2))
        variable = servers[1]._state.store.get("v")
        assert variable.value.tolist() == [0, 0]
    second.close()


def test_a_program_that_stands_by_ends_when_the_other_one_has_finished(
    servers: list[ParameterServer], programs: Programs
) -> None:
    first, second = programs.candidate(FIRST), programs.candidate(SECOND)
    first.await_turn()
    ends: list[CancelledError] = []

    def wait() -> None:
        try:
            second.await_turn()
        except CancelledError as end:
            ends.append(end)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(lambda: waits_at(servers[0]))
    first.leave(finished=True)
    waiting.join(20)
    assert "has come to its end" in str(ends[0])
    programs.candidate(SECOND).await_turn()  # one that comes later begins anew


def test_a_program_that_did_not_wait_for_its_turn_is_waited_for(
    servers: list[ParameterServer], programs: Programs
) -> None:
    second = programs.candidate(SECOND)
    with connection_of(servers[0], FIRST) as plain:
        make(plain, "v", torch.zeros(2))
        waiting = begun(second)
        eventually(lambda: waits_at(servers[0]))
        assert add(plain, "v", torch.ones(2)) == 2
    waiting.join(20)
    assert not waiting.is_alive()
    second.close()


def test_a_server_that_was_started_again_learns_who_coordinates(
    servers: list[ParameterServer], programs: Programs
) -> None:
    first = programs.candidate(FIRST)
    first.await_turn()
    servers[1].stop(0)
    with ParameterServer(servers[1].settings) as again:
        eventually(lambda: again._state.succession.incumbent.program == FIRST)
    first.close()


def test_a_log_has_who_coordinates(tmp_path: Path) -> None:
    settings = ServerSettings(token=TOKEN, durability="log", durability_folder=str(tmp_path))
    with ParameterServer(settings) as server:
        programs = Programs([server])
        for program in FIRST, SECOND:
            candidate = programs.candidate(program)
            candidate.await_turn()
            candidate.leave(finished=False)
        before = server._state.succession.facts()
        programs.close()
    with ParameterServer(settings) as again:
        assert again._state.succession.facts() == before


def test_only_the_chief_of_a_cluster_stands_by() -> None:
    spec = stratagem.ClusterSpec({"ps": ["localhost:1"], "worker": ["localhost:2"]})
    worker = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    with (
        pytest.raises(InvalidArgumentError, match="only the chief coordinates"),
        stratagem.coordinator.stand_by(worker, token=TOKEN),
    ):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="there is none"),
        stratagem.coordinator.stand_by(SimpleClusterResolver(stratagem.ClusterSpec({}))),
    ):
        pass
