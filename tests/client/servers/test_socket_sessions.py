"""For whom calls over a socket are answered: for the session that the socket was opened for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import handshake
from stratagem_proto.errors import PermissionDeniedError
from stratagem_proto.proofs import credential_of
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.parameter_server_pb2 import ReadRequest
from stratagem_proto.v1.variable_requests_pb2 import DeleteVariablesRequest
from stratagem_proto.wire.status import translated
from stratagem_psserver.server import ParameterServer
from stratagem_rpc.channel import TCP, UNIX
from stratagem_rpc.socket_server import listener
from stratagem_rpc.sockets.client import SocketLink, UnixEndpoint, endpoints, require_ok
from stratagem_rpc.sockets.frames import FrameKind
from tests.client.connections import IDENTITY, connected
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient

_PATH = b"/stratagem_proto.v1.ParameterServerService/"
_OTHER = b"another session."
_SHOWN = _OTHER + credential_of(_OTHER, TOKEN)


@pytest.fixture
def connection(server: ParameterServer) -> Iterator[Connection]:
    with connected(server.address) as opened:
        opened.open()
        yield opened


def identifier(connection: Connection) -> bytes:
    assert connection.session is not None
    return connection.session.identifier


@pytest.fixture
def link(server: ParameterServer, connection: Connection) -> Iterator[SocketLink]:
    """A socket of the session of a connection."""
    assert server._state.frame_sockets is not None
    told = server._state.frame_sockets.to(identifier(connection))
    endpoint = next(endpoints(told, server.address, UNIX))
    with closing(SocketLink(endpoint)) as opened:
        yield opened


def call(link: SocketLink, method: bytes, message: bytes) -> None:
    link.send(FrameKind.CALL, message, is_last=True, path=_PATH + method)
    with translated("the server", method.decode()):
        for frame in link.frames():
            if frame.kind == FrameKind.STATUS:
                require_ok(frame)


_KEY = session_pb2.RequestKey(session_id=_SHOWN, sequence=1)
CALLS = {
    "Heartbeat": session_pb2.HeartbeatRequest(session_id=_SHOWN),
    "AttendSession": session_pb2.AttendSessionRequest(session_id=_SHOWN),
    "CloseSession": session_pb2.CloseSessionRequest(session_id=_SHOWN),
    "Read": ReadRequest(session_id=_SHOWN),
    "DeleteVariables": DeleteVariablesRequest(key=_KEY, names=["v"]),
    "OpenSession": handshake(IDENTITY, _OTHER),
}


@pytest.mark.parametrize("method", CALLS)
def test_a_socket_acts_for_its_session_alone(
    server: ParameterServer, link: SocketLink, method: str
) -> None:
    with RawClient(server.address, TOKEN) as other:
        other.session_id = _SHOWN
        other.open()
        with pytest.raises(PermissionDeniedError, match="for that session alone") as refused:
            call(link, method.encode(), CALLS[method].SerializeToString())
        assert _OTHER.hex()[:8] not in str(refused.value)
        other.heartbeat()


def test_a_socket_acts_for_its_session(connection: Connection, link: SocketLink) -> None:
    assert connection.session is not None
    request = session_pb2.HeartbeatRequest(session_id=connection.session.credential)
    call(link, b"Heartbeat", request.SerializeToString())


def test_the_secret_of_one_session_opens_no_socket_of_another(
    server: ParameterServer, connection: Connection
) -> None:
    assert server._state.frame_sockets is not None
    told = server._state.frame_sockets.to(identifier(connection))
    told.session_id = _OTHER
    for endpoint in endpoints(told, server.address, "auto"):
        with pytest.raises(ConnectionRefusedError, match="somebody else answers"):
            SocketLink(endpoint)


def test_no_session_is_told_of_what_the_secrets_of_all_are_made(
    server: ParameterServer, connection: Connection
) -> None:
    offered = server._state.frame_sockets
    assert offered is not None
    told = offered.to(identifier(connection))
    assert offered.run_secret not in told.SerializeToString()
    assert offered.to(_OTHER).secret != told.secret


def test_a_process_of_another_user_goes_another_way(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "is_trusted", lambda user: False)
    with connected(server.address) as connection:
        connection.open()
        assert connection.route.way == TCP
    monkeypatch.undo()
    with connected(server.address) as connection:
        connection.open()
        assert connection.route.way == UNIX


_KNOCK = """
import os, socket, sys
os.setuid(int(sys.argv[3]))
knocking = socket.socket(socket.AF_UNIX)
knocking.settimeout(20)
knocking.connect(b"\\0" + bytes.fromhex(sys.argv[1]))
try:
    knocking.sendall(bytes.fromhex(sys.argv[2]))
    print(len(knocking.recv(1)))
except ConnectionError:
    print(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("user", "answer"), [(0, "1"), (65534, "0")])
def test_the_system_says_whose_the_process_at_the_other_end_is(
    server: ParameterServer, user: int, answer: str
) -> None:
    assert server._state.frame_sockets is not None
    endpoint = next(endpoints(server._state.frame_sockets.to(_OTHER), server.address, UNIX))
    assert isinstance(endpoint, UnixEndpoint)
    hello = b"\x30\0\0\0\0\0\x81\0" + _OTHER + bytes(32)
    command = [sys.executable, "-I", "-c", _KNOCK, endpoint.name.hex(), hello.hex()]
    said = subprocess.run([*command, str(user)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == answer
