"""Which way requests to a server go, and that they fare the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from traceback import format_exception

import pytest
import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.coordination import barrier
from stratagem._ps_client.socket_transport import SocketTransport
from stratagem._ps_client.transport import Attempt, Call
from stratagem_proto.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    MalformedStreamError,
    UnavailableError,
    VariableNotFoundError,
)
from stratagem_proto.v1.session_pb2 import FrameSockets
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE, UNIX
from tests.client.connections import add, connected, make, value_of
from tests.conftest import TOKEN
from tests.faults import FaultyProxy


@contextmanager
def calling(monkeypatch: pytest.MonkeyPatch, transport: str) -> Iterator[Connection]:
    """A connection of a client with that setting, to a server that has both."""
    with ExitStack() as stack:
        server = stack.enter_context(ParameterServer(ServerSettings(token=TOKEN)))
        monkeypatch.setenv(TRANSPORT_VARIABLE, transport)
        yield stack.enter_context(connected(server.address))


@pytest.mark.parametrize("transport", [AUTO, TCP, GRPC])
def test_requests_fare_the_same_over_both_transports(
    monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    ones = torch.ones(700_000)
    with calling(monkeypatch, transport) as connection:
        make(connection, "v", torch.zeros_like(ones))
        assert connection.route.way == (UNIX if transport == AUTO else transport)
        assert add(connection, "v", ones) == 2
        assert value_of(connection, "v", ones).eq(1).all()
        message = "this server hosts no variable 'w'; it hosts 1, none with a similar"
        for _ in range(2):
            with pytest.raises(VariableNotFoundError, match=message) as caught:
                add(connection, "w", torch.ones(2))
            assert caught.value.variable == "w"
            assert caught.value.task == "/job:ps/task:0"
        endless = replace(barrier("lonely", 0, 2, wait=60), wait=0.0)
        brief = replace(connection.deadlines, call=0.1, connect=0.0)
        connection.deadlines = brief
        with pytest.raises(DeadlineExceededError, match="Barrier on /job:ps/task:0") as late:
            connection.call(endless)
        assert "".join(format_exception(late.value)).count("Traceback") == 1


def test_a_server_may_be_told_to_speak_grpc_only() -> None:
    settings = ServerSettings(token=TOKEN, transport=GRPC)
    with ParameterServer(settings) as server, connected(server.address) as connection:
        make(connection, "v", torch.zeros(2))
        assert connection.route.way == GRPC


def test_a_transport_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="'udp' is not a transport; give"):
        ServerSettings(token=TOKEN, transport="udp")
    monkeypatch.setenv(TRANSPORT_VARIABLE, "pigeon")
    with (
        pytest.raises(InvalidArgumentError, match="'pigeon' is not a transport"),
        connected("127.0.0.1:1"),
    ):
        pass


def test_who_comes_through_a_proxy_stays_with_it(server: ParameterServer) -> None:
    with FaultyProxy(server.address) as proxy, connected(proxy.address) as connection:
        make(connection, "v", torch.zeros(2))
        assert connection.route.way == GRPC


class Failing(SocketTransport):
    """Cannot begin a call; something may happen meanwhile."""

    error: Exception = TimeoutError()
    asked = 0
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def send(self, call: Call) -> Attempt:
        self.asked += 1
        self.meanwhile()
        raise self.error


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (TimeoutError(), True),
        (ConnectionRefusedError(), False),
        (MalformedStreamError("it is somebody else's"), False),
    ],
)
def test_a_socket_is_given_up_where_nobody_is_there_and_not_for_one_call(
    server: ParameterServer, error: Exception, stays: bool
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(2))
        transport = connection.route.transport
        assert isinstance(transport._chosen, SocketTransport)
        transport._chosen.close()
        failing = Failing(transport._chosen._links.endpoint)
        failing.error = error
        transport._chosen = failing
        assert add(connection, "v", torch.ones(2)) == 2
        assert (transport._chosen is failing) is stays
        assert add(connection, "v", torch.ones(2)) == 3
        assert failing.asked == 1


def test_a_socket_that_fails_is_not_taken_for_one_learnt_of_meanwhile(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(2))
        transport = connection.route.transport
        newer = transport._chosen
        assert isinstance(newer, SocketTransport)
        former = Failing(newer._links.endpoint)
        former.error = ConnectionRefusedError()
        former.meanwhile = lambda: setattr(transport, "_chosen", newer)
        transport._chosen = former
        assert add(connection, "v", torch.ones(2)) == 2
        assert transport._chosen is newer


def test_a_new_run_of_a_server_pays_nothing_for_the_one_that_did_not_answer(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(2))
        transport = connection.route.transport
        assert isinstance(transport._chosen, SocketTransport)
        told, failing = transport._offer, Failing(transport._chosen._links.endpoint)
        transport.learn(FrameSockets())
        transport._chosen = failing
        for _ in range(2):
            add(connection, "v", torch.ones(2))
        assert failing.asked == 1
        transport.learn(told)
        transport._chosen.close()
        transport._chosen = failing
        add(connection, "v", torch.ones(2))
        assert failing.asked == 2


def test_a_server_that_is_gone_is_looked_for_by_grpc(server: ParameterServer) -> None:
    with connected(server.address, connect=0.3) as connection:
        make(connection, "v", torch.zeros(2))
        assert connection.route.way == UNIX
        server.stop()
        with pytest.raises(UnavailableError, match="Check that the server runs"):
            add(connection, "v", torch.ones(2))
        assert connection.route.way == GRPC
