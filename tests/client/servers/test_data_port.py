"""Requests over the port that a server has for frames, and when there is none."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import grpc
import pytest
import torch

from stratagem._ps_client.group import Order, ServerGroup
from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.errors import (
    DeadlineExceededError,
    SessionLostError,
    UnavailableError,
)
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import (
    AUTO,
    GRPC,
    STALL_SECONDS,
    TCP,
    TRANSPORT_VARIABLE,
    UNIX,
    Deadlines,
)
from stratagem_rpc.socket_server import listener
from stratagem_rpc.socket_server.listener import NO_PORT
from stratagem_rpc.sockets.client import TcpEndpoint, broken
from tests.client.connections import (
    IDENTITY,
    add,
    addition,
    connected,
    creation,
    make,
    value_of,
)
from tests.conftest import TOKEN
from tests.faults import Direction
from tests.full import a_few
from tests.relays import Relay
from tests.waiting import eventually

TO_SERVER, TO_CLIENT = Direction


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, TCP)


def told_by(server: ParameterServer) -> FrameSockets:
    """What its clients will hear of its sockets; to be changed before they do."""
    assert server._state.frame_sockets is not None
    return server._state.frame_sockets.described


@pytest.fixture
def relay(server: ParameterServer) -> Iterator[Relay]:
    """Stands between the server's port and all clients."""
    with Relay(told_by(server).data_port) as between:
        told_by(server).data_port = between.port
        yield between


def places_to_cut(nbytes: int) -> list[tuple[Direction, int]]:
    """Within the first frame's header, its path, the bytes, the end, and the answer."""
    there = {0, 5, 20, nbytes // 2, nbytes - 1, nbytes, nbytes + 20}
    return [(TO_SERVER, each) for each in sorted(there)] + [(TO_CLIENT, each) for each in (0, 3, 9)]


@a_few("nbytes", [800, 12 << 20], "a large write is cut in its reads", ids=["one frame", "many"])
def test_a_write_is_applied_once_wherever_its_connection_is_cut(
    server: ParameterServer, relay: Relay, nbytes: int
) -> None:
    ones = torch.ones(nbytes // 8, dtype=torch.int64)
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros_like(ones))
        assert connection.route.way == TCP
        cuts = places_to_cut(nbytes)
        for direction, after in cuts:
            relay.cut_after(direction, after)
            add(connection, "v", ones)
        assert connection.route.way == TCP
        assert relay.cuts >= len(cuts) - 1
        assert value_of(connection, "v", ones).eq(len(cuts)).all()


@a_few("after", [0, 5, 1000, 3_000_000], "one place of the cut stands for the others", 2)
def test_a_read_comes_whole_wherever_its_connection_is_cut(
    server: ParameterServer, relay: Relay, after: int
) -> None:
    value = torch.arange(2_000_000)
    with connected(server.address) as connection:
        make(connection, "v", value)
        for _ in range(3):
            relay.cut_after(TO_CLIENT, after)
            assert torch.equal(value_of(connection, "v", value), value)
        assert relay.cuts == 3


def test_an_answer_that_never_stops_to_come_is_late_all_the_same(
    server: ParameterServer, relay: Relay
) -> None:
    value = torch.arange(6_000)
    with connected(server.address) as connection:
        make(connection, "v", value)
        relay.crawling = TO_CLIENT
        patient, connection.deadlines = connection.deadlines, Deadlines(0.3, 0)
        with pytest.raises(DeadlineExceededError):
            value_of(connection, "v", value)
        relay.crawling, connection.deadlines = None, patient
        assert torch.equal(value_of(connection, "v", value), value)


def test_a_greeting_that_is_cut_leaves_the_session_to_grpc(
    server: ParameterServer, relay: Relay
) -> None:
    relay.cut_after(TO_SERVER, 50)
    with connected(server.address) as connection:
        make(connection, "v", torch.ones(2))
        assert connection.route.way == GRPC
        assert relay.cuts == 1


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def test_where_the_port_is_closed_requests_go_by_grpc(
    server: ParameterServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stratagem")
    told_by(server).data_port = closed_port()
    with connected(server.address) as connection:
        make(connection, "v", torch.ones(2))
        assert add(connection, "v", torch.ones(2)) == 2
        assert connection.route.way == GRPC
        connection.resume()
        assert connection.route.way == GRPC
    said = [line for line in caplog.messages if "is not called by tcp" in line]
    assert len(said) == 1


def test_where_nobody_answers_at_the_port_requests_go_by_grpc(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TcpEndpoint, "seconds", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told_by(server).data_port = silent.getsockname()[1]
        with connected(server.address) as connection:
            make(connection, "v", torch.ones(2))
            assert connection.route.way == GRPC


def test_another_server_behind_the_port_is_not_taken_for_it(
    server: ParameterServer,
) -> None:
    with ExitStack() as stack:
        other = stack.enter_context(ParameterServer(ServerSettings(token=TOKEN)))
        told_by(server).data_port = told_by(other).data_port
        connection = stack.enter_context(connected(server.address))
        make(connection, "v", torch.ones(2))
        assert connection.route.way == GRPC
        assert add(connection, "v", torch.ones(2)) == 2


def test_a_server_that_took_the_place_of_another_is_not_taken_for_it() -> None:
    with ReservedAddresses(2) as places, ExitStack() as stack:
        address, data_address = places.replicas
        port = int(data_address.rpartition(":")[2])
        settings = ServerSettings(address, token=TOKEN, data_port=port)
        connection = stack.enter_context(connected(address))
        with ParameterServer(settings):
            make(connection, "v", torch.ones(2))
            assert connection.route.way == TCP
        with ParameterServer(settings) as second:
            assert told_by(second).data_port == port
            with pytest.raises(SessionLostError, match="was restarted"):
                add(connection, "v", torch.ones(2))


def test_tasks_of_one_host_that_do_not_see_each_other_use_the_port(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, AUTO)
    told_by(server).name = b"of another network namespace"
    with connected(server.address) as connection:
        make(connection, "v", torch.ones(700_000))
        assert connection.route.way == TCP
        assert value_of(connection, "v", torch.ones(700_000)).eq(1).all()


@pytest.mark.parametrize(
    "settings",
    [
        ServerSettings(token=TOKEN, data_port=NO_PORT),
        ServerSettings(token=TOKEN, transport=UNIX),
        ServerSettings(token=TOKEN, transport=GRPC),
    ],
    ids=["no port", UNIX, GRPC],
)
def test_a_server_may_be_told_to_have_no_such_port(settings: ServerSettings) -> None:
    with ParameterServer(settings) as server, connected(server.address) as connection:
        make(connection, "v", torch.ones(2))
        assert connection.route.way == GRPC


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ParameterServer(ServerSettings(token=TOKEN, data_port=port))
        with pytest.raises(UnavailableError, match=f"cannot listen on .*:{port}"):
            server.start()
        # Nothing of it is left.
        with ParameterServer(ServerSettings(token=TOKEN)):
            pass


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize("host", ["[::1]", "[::]", "localhost"])
def test_servers_are_reached_at_hosts_of_either_family(host: str) -> None:
    settings = ServerSettings(bind=f"{host}:0", token=TOKEN, insecure=True)
    with ParameterServer(settings) as server, ExitStack() as stack:
        called = server.address.replace("[::]", "127.0.0.1")
        connection = stack.enter_context(connected(called))
        make(connection, "v", torch.ones(2))
        assert connection.route.way == TCP


def place_of(server: ParameterServer) -> TcpEndpoint:
    assert server._state.frame_sockets is not None
    told = server._state.frame_sockets.to(bytes(16))
    return TcpEndpoint("127.0.0.1", told.data_port, bytes(16), told.secret, stall_seconds=15)


def unsupported(*_: object) -> None:
    raise OSError("not on this system")


def test_a_connection_that_a_server_cannot_set_up_is_let_go(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(listener, "tune", unsupported)
        with closing(place_of(server).connect(5)) as mine:
            assert mine.recv(1) == b""
    with connected(server.address) as connection:
        make(connection, "v", torch.ones(2))
        assert connection.route.way == TCP


def test_a_system_that_does_not_end_dead_connections_stays_with_grpc(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(server.address) as connection:
        with monkeypatch.context() as patch:
            patch.delattr(socket, "TCP_USER_TIMEOUT")
            make(connection, "v", torch.ones(2))
        assert connection.route.way == GRPC
        assert add(connection, "v", torch.ones(2)) == 2


def test_a_host_that_is_gone_is_not_one_that_takes_its_time() -> None:
    gone = broken(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
    assert gone.code() is grpc.StatusCode.UNAVAILABLE
    assert broken(TimeoutError("late")).code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_connections_to_hosts_that_are_gone_end(server: ParameterServer) -> None:
    listening = server._sockets
    assert listening is not None
    with closing(place_of(server).connect(5)) as mine:
        eventually(lambda: len(listening._unproved) == 1)
        (peer,) = listening._unproved
        for end in (mine, peer._socket):
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


def test_a_server_that_takes_nothing_keeps_no_large_request_from_another_one(
    server: ParameterServer, relay: Relay
) -> None:
    ones = torch.ones(4 << 20, dtype=torch.int64)  # more than sockets hold
    with (
        ParameterServer(ServerSettings(task=1, token=TOKEN)) as other,
        closing(ServerGroup([server.address, other.address], IDENTITY)) as group,
        closing(group.beside()) as looking,
    ):
        group.call_all({task: creation("v", torch.zeros_like(ones)) for task in (0, 1)})
        relay.hold()
        begun = time.monotonic()
        sent = group.start_all({task: addition("v", ones) for task in (0, 1)}, Order.IN_FLIGHT)
        eventually(lambda: bool(value_of(looking._connections[1], "v", ones).eq(1).all()))
        # Before the connection of the one that takes nothing is given up.
        assert time.monotonic() < begun + STALL_SECONDS / 2
        relay.release()
        assert sent() == {0: [2], 1: [2]}
