"""Requests to servers over connections that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.coordination import barrier
from stratagem._ps_client.requests.reads import Reading, read
from stratagem._ps_client.requests.variables import Writing, assign, create, list_variables
from stratagem._ps_client.session import Identity
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_deploy.watching.asking import ServerPlace, ask, calls_of
from stratagem_proto.errors import (
    AlreadyExistsError,
    CancelledError,
    FailedPreconditionError,
    SessionLostError,
    UnauthenticatedError,
    UnavailableError,
    VariableNotFoundError,
)
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    CloseSessionRequest,
    HeartbeatRequest,
)
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_proto.wire.status import translated
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import Deadlines, open_channel
from tests.client.connections import IDENTITY, add, connected, make, value_of
from tests.conftest import TOKEN
from tests.faults import CutAt, Direction, FaultyProxy, Passing, Verdict
from tests.full import a_few
from tests.rpc_methods import parameter_server_method
from tests.waiting import eventually

CUTS = [Verdict.CUT_BEFORE, Verdict.CUT_AFTER, Verdict.CUT_WITHIN]


@a_few(
    "nbytes",
    [8, 3 << 20],
    "large ones are cut by test_data_port.py",
    ids=["one frame", "many chunks"],
)
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.value)
def test_a_write_is_applied_once_wherever_its_connection_is_cut(
    server: ParameterServer, cut: Verdict, nbytes: int
) -> None:
    ones = torch.ones(nbytes // 8, dtype=torch.int64)
    with FaultyProxy(server.address) as proxy, connected(proxy.address) as connection:
        make(connection, "v", torch.zeros_like(ones))
        before = proxy.frames
        add(connection, "v", ones)
        frames = proxy.frames - before
        # A request has at least its headers and a message, and so has its answer.
        assert frames >= 4
        # A large request has too many frames to cut at each of them.
        places = range(0, frames, max(1, frames // 12))
        for number in places:
            proxy.judge = CutAt(number, cut)
            add(connection, "v", ones)
        assert proxy.cuts >= len(places) - 1
        assert value_of(connection, "v", ones).eq(len(places) + 1).all()


def test_a_request_that_arrives_twice_is_applied_once_and_answered_alike(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(3))
        request = assign([Writing("v", ASSIGN_MODE_ADD, torch.ones(3))])
        request.stamp(connection.open().next_key(CheckpointSteps()))
        attempts = [connection.route.attempt(request, Deadlines()) for _ in range(3)]
        assert [request.receive(one.responses) for one in attempts] == [[2]] * 3
        assert value_of(connection, "v", torch.ones(3)).eq(1).all()


@a_few("cut", CUTS, "writes are cut at each place", ids=lambda cut: cut.value)
def test_a_read_comes_whole_wherever_its_connection_is_cut(
    server: ParameterServer, cut: Verdict
) -> None:
    value = torch.arange(400_000)
    with FaultyProxy(server.address) as proxy, connected(proxy.address) as connection:
        make(connection, "v", value)
        for number in range(0, 12):
            proxy.judge = CutAt(number, cut)
            assert torch.equal(value_of(connection, "v", value), value)
        assert proxy.cuts > 0


def test_reading_only_what_is_newer_leaves_the_tensor_alone(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.ones(3))
        into = torch.zeros(3)
        assert connection.call(read([Reading("v", into, newer_than=1)])) == [1]
        assert into.eq(0).all()
        add(connection, "v", torch.ones(3))
        assert connection.call(read([Reading("v", into, newer_than=1)])) == [2]
        assert into.eq(2).all()


def test_a_read_fills_tensors_that_are_not_contiguous(server: ParameterServer) -> None:
    value = torch.arange(6.0).reshape(2, 3)
    with connected(server.address) as connection:
        make(connection, "v", value)
        into = torch.zeros(3, 2).t()
        connection.call(read([Reading("v", into)]))
        assert torch.equal(into, value)


def test_autograd_notices_that_a_read_wrote_a_tensor(server: ParameterServer) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.ones(3))
        leaf = torch.zeros(3, requires_grad=True)
        loss = (leaf * leaf).sum()
        connection.call(read([Reading("v", leaf)]))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_server_that_is_away_for_too_long_is_named_with_what_to_do() -> None:
    with ParameterServer(ServerSettings(token=TOKEN)) as gone:
        address = gone.address
    with (
        connected(address, connect=0.2) as connection,
        pytest.raises(UnavailableError) as caught,
    ):
        connection.open()
    assert f"/job:ps/task:0 at {address}" in str(caught.value)
    assert "Check that the server runs" in str(caught.value)


def test_an_answer_that_never_comes_leaves_the_outcome_unknown_and_says_so(
    server: ParameterServer,
) -> None:
    ones = torch.ones(3)

    def mute(passing: Passing) -> Verdict:
        quiet = passing.carries_message and passing.direction is Direction.TO_CLIENT
        return Verdict.CUT_BEFORE if quiet else Verdict.PASS

    with (
        FaultyProxy(server.address) as proxy,
        connected(proxy.address, connect=0.3) as connection,
    ):
        make(connection, "v", torch.zeros(3))
        proxy.judge = mute
        with pytest.raises(UnavailableError, match="not known whether"):
            add(connection, "v", ones)
        proxy.judge = lambda passing: Verdict.PASS
        # The server had it, and hears by the next one that its outcome is known.
        assert add(connection, "v", ones) == 3
        assert value_of(connection, "v", ones).eq(2).all()


def test_a_refused_write_does_not_hold_up_the_next_one(server: ParameterServer) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(3))
        with pytest.raises(AlreadyExistsError):
            make(connection, "v", torch.zeros(3))
        with pytest.raises(VariableNotFoundError):
            add(connection, "w", torch.ones(3))
        assert add(connection, "v", torch.ones(3)) == 2


def test_nothing_is_sent_if_one_of_the_servers_was_never_there() -> None:
    with ParameterServer(ServerSettings(task=1, token=TOKEN)) as gone:
        missing = gone.address
    with ParameterServer(ServerSettings(token=TOKEN)) as server:
        spec = VariableSpec(name="v", tensor=spec_of(torch.zeros(2)), kind=VARIABLE_KIND_MODEL)
        group = ServerGroup([server.address, missing], IDENTITY, Deadlines(connect=0.2))
        with pytest.raises(UnavailableError):
            group.on_all(lambda: create([spec], [torch.zeros(2)]))
        assert group.call(0, list_variables()).variables == []
        group.close()


def test_a_wrong_token_is_refused(server: ParameterServer) -> None:
    with (
        connected(server.address, Identity(ROLE_CHIEF, token="a guess by somebody")) as connection,
        pytest.raises(UnauthenticatedError, match="STRATAGEM_TOKEN_FILE"),
    ):
        connection.open()


def test_the_token_does_not_show_in_messages() -> None:
    assert TOKEN not in repr(IDENTITY)


def test_a_server_at_another_ones_address_is_noticed() -> None:
    with (
        ParameterServer(ServerSettings(task=1, token=TOKEN)) as other,
        connected(other.address) as connection,
        pytest.raises(FailedPreconditionError, match="/job:ps/task:1 answers"),
    ):
        connection.open()


@contextmanager
def restartable() -> Iterator[ServerSettings]:
    """Settings with an address that nobody takes while the server is away."""
    with ReservedAddress() as address:
        yield ServerSettings(bind=str(address), token=TOKEN)


def test_a_restarted_server_is_reported_and_gets_no_request_again() -> None:
    with restartable() as settings, ParameterServer(settings) as first:
        address = first.address
        with connected(address) as connection:
            make(connection, "v", torch.zeros(3))
            first.stop()
            with ParameterServer(settings) as second:
                for _ in range(2):
                    with pytest.raises(SessionLostError, match="gone") as caught:
                        add(connection, "v", torch.ones(3))
                    assert f"/job:ps/task:0 at {address}" in str(caught.value)
                with connected(second.address) as fresh:
                    make(fresh, "v", torch.zeros(3))


def test_who_knows_of_a_run_that_has_ended_gets_nothing_from_the_next() -> None:
    with restartable() as settings, ParameterServer(settings) as first:
        with connected(first.address) as creator:
            creator.open()
            run = creator.run
        with connected(first.address) as overlap:
            overlap.expect(run)
            make(overlap, "v", torch.zeros(3))
        first.stop()
        with (
            ParameterServer(settings) as second,
            connected(second.address) as late,
        ):
            late.expect(run)
            for _ in range(2):
                with pytest.raises(SessionLostError, match="was restarted"):
                    add(late, "v", torch.ones(3))


def test_a_restarted_server_does_not_know_the_sessions_of_before() -> None:
    with restartable() as settings, ParameterServer(settings) as first:
        address = first.address
        with connected(address) as connection:
            session = connection.open()
            first.stop()
            with ParameterServer(settings):
                with pytest.raises(SessionLostError, match="gone"):
                    connection.resume()
                # What another thread sends again must not reach new variables.
                request = HeartbeatRequest(session_id=session.credential)
                with (
                    open_channel(address) as channel,
                    pytest.raises(SessionLostError),
                    translated("the server", "Heartbeat"),
                ):
                    parameter_server_method(channel, "Heartbeat")(request)


def test_an_ended_session_goes_on_under_its_numbers(server: ParameterServer) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(3))
        session = connection.open()
        with open_channel(server.address) as channel:
            close = parameter_server_method(channel, "CloseSession")
            close(CloseSessionRequest(session_id=session.credential))
        assert add(connection, "v", torch.ones(3)) == 2
        assert connection.open() is session


def test_heartbeats_keep_an_idle_session_open() -> None:
    settings = ServerSettings(token=TOKEN, lease_seconds=0.4)
    with ParameterServer(settings) as server, FaultyProxy(server.address) as proxy:
        group = ServerGroup([proxy.address], IDENTITY)
        group.call(0, read([]))
        before = proxy.frames
        # Ten calls of four frames or more last several leases.
        eventually(lambda: proxy.frames >= before + 40)
        # A session that had ended would have been opened again.
        calls = calls_of(ask([ServerPlace(server.address)], TOKEN, timeout=10))
        assert calls["OpenSession"].ended == {"OK": 1}
        group.close()


def test_requests_to_several_servers_are_under_way_at_once() -> None:
    with (
        ParameterServer(ServerSettings(task=0, token=TOKEN)) as first,
        ParameterServer(ServerSettings(task=1, token=TOKEN)) as second,
    ):
        addresses = [first.address, second.address]
        here = ServerGroup(addresses, Identity(ROLE_CHIEF, "worker", 0, TOKEN))
        there = ServerGroup(addresses, Identity(ROLE_CHIEF, "worker", 1, TOKEN))

        def meet_in_reverse() -> None:
            for task in (1, 0):
                there.call(task, barrier("meeting", 0, 2, wait=20))

        thread = threading.Thread(target=meet_in_reverse)
        thread.start()
        here.call_all({task: barrier("meeting", 0, 2, wait=20) for task in (0, 1)})
        thread.join()
        here.close()
        there.close()


def test_one_failing_server_does_not_keep_others_from_their_requests() -> None:
    with (
        ParameterServer(ServerSettings(task=0, token=TOKEN)) as first,
        ParameterServer(ServerSettings(task=1, token=TOKEN)) as second,
    ):
        group = ServerGroup([first.address, second.address], IDENTITY)
        spec = VariableSpec(name="v", tensor=spec_of(torch.zeros(2)), kind=VARIABLE_KIND_MODEL)
        group.call(1, create([spec], [torch.zeros(2)]))
        writing = Writing("v", ASSIGN_MODE_ADD, torch.ones(2))
        with pytest.raises(VariableNotFoundError):
            group.call_all({task: assign([writing]) for task in (0, 1)})
        into = torch.zeros(2)
        assert group.call(1, read([Reading("v", into)])) == [2]
        group.close()


def test_a_closed_connection_says_so(server: ParameterServer) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(3))
        connection.close()
        with pytest.raises(CancelledError, match="closed"):
            add(connection, "v", torch.ones(3))


def test_closing_ends_a_request_that_waits(server: ParameterServer) -> None:
    group = ServerGroup([server.address], IDENTITY)
    group.call(0, read([]))
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            group.call(0, barrier("lonely", 0, 2, wait=60))
        except CancelledError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    group.close()
    thread.join(20)
    assert not thread.is_alive()
    assert failures
