"""The data port of a server with certificates: who gets through to whom, and for how long."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc
import pytest
import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import Identity
from stratagem._ps_client.socket_transport import SocketTransport
from stratagem._ps_client.transport import Attempt, Call, Style
from stratagem_proto.errors import PermissionDeniedError, UnauthenticatedError
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, FrameSockets, HeartbeatRequest
from stratagem_proto.wire.status import translated
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.certificates.folder import CertificateFolder, shown_certificate
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import AUTO, TCP, TRANSPORT_VARIABLE, UNIX, Expected
from stratagem_rpc.serving.process import LoopThread
from stratagem_rpc.socket_server import peer
from stratagem_rpc.sockets.client import SocketLink, TcpEndpoint, require_ok
from stratagem_rpc.sockets.frames import FrameKind
from tests.certified import Certified, certified, serial
from tests.client.connections import add, connected, make, value_of
from tests.client.servers.echo import Served
from tests.faults import Direction
from tests.relays import Relay
from tests.waiting import eventually

CHIEF = Identity(ROLE_CHIEF, "worker", 0)

THE_SERVER = Expected("ps", 0)


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, TCP)


@pytest.fixture
def authority(tmp_path: Path) -> Certified:
    return certified(tmp_path / "prod")


@pytest.fixture
def server(authority: Certified) -> Iterator[ParameterServer]:
    with ParameterServer(ServerSettings(tls=authority.of("ps:0"))) as running:
        yield running


@pytest.fixture
def connection(server: ParameterServer, authority: Certified) -> Iterator[Connection]:
    """A session of the chief over the data port, with the variable "v" of two zeros."""
    chief = authority.of("worker:0=chief")
    with presenting(chief), connected(server.address, CHIEF) as opened:
        make(opened, "v", torch.zeros(2))
        assert opened.route.way == TCP
        yield opened


def told_by(server: ParameterServer) -> FrameSockets:
    """What its clients will hear of its sockets; to be changed before they do."""
    assert server._state.frame_sockets is not None
    return server._state.frame_sockets.described


def endpoint(
    server: ParameterServer,
    shown: Path | None,
    expected: Expected = THE_SERVER,
    session_id: bytes = bytes(16),
) -> TcpEndpoint:
    """Where somebody connects who knows a session's secret for his certificate, and shows it."""
    sockets = server._state.frame_sockets
    assert sockets is not None
    certificate = shown_certificate((shown / "tls.crt").read_bytes()) if shown else None
    known = session_id, sockets.secret(session_id, certificate)
    certificates = CertificateFolder(shown, print) if shown else None
    return TcpEndpoint("127.0.0.1", sockets.described.data_port, *known, 15, certificates, expected)


class Listening(Relay):
    """Keeps all that passes through it."""

    def _receive(self, source: socket.socket, sink: socket.socket) -> bytes:
        data = super()._receive(source, sink)
        self.heard = getattr(self, "heard", b"") + data
        return data


@pytest.mark.parametrize("is_certified", [False, True])
def test_who_listens_to_a_data_port_reads_what_passes_only_where_nobody_shows_certificates(
    authority: Certified, is_certified: bool
) -> None:
    tls = authority.of("ps:0") if is_certified else None
    settings, name = ServerSettings(tls=tls), "a-name-that-nobody-else-knows"
    with ParameterServer(settings) as server, Listening(told_by(server).data_port) as between:
        told_by(server).data_port = between.port
        if is_certified:
            with presenting(authority.of("worker:0=chief")):
                spell(server, name)
        else:
            spell(server, name)
        assert (name.encode() in between.heard) is not is_certified
        assert len(between.heard) > len(name)


def spell(server: ParameterServer, name: str) -> None:
    with connected(server.address, CHIEF) as connection:
        make(connection, name, torch.zeros(2))
        add(connection, name, torch.ones(2))
        assert connection.route.way == TCP


TO_SERVER, TO_CLIENT = Direction
BYTES = 12 << 20


@pytest.mark.full("large writes are cut by test_data_port.py")
def test_a_large_write_is_applied_once_wherever_its_connection_is_cut(
    server: ParameterServer, authority: Certified
) -> None:
    ones = torch.ones(BYTES // 8, dtype=torch.int64)
    with Relay(told_by(server).data_port) as between:
        told_by(server).data_port = between.port
        with (
            presenting(authority.of("worker:0=chief")),
            connected(server.address, CHIEF) as connection,
        ):
            make(connection, "v", torch.zeros_like(ones))
            cuts = [(TO_SERVER, each) for each in (0, 3, 700, BYTES // 2, BYTES)]
            cuts += [(TO_CLIENT, each) for each in (0, 3, 700)]
            for direction, after in cuts:
                between.cut_after(direction, after)
                add(connection, "v", ones)
            assert value_of(connection, "v", ones).eq(len(cuts)).all()
            assert connection.route.way == TCP
            assert between.cuts >= len(cuts) - 1


def test_processes_of_one_host_use_a_unix_socket_all_the_same(
    authority: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, AUTO)
    with (
        ParameterServer(ServerSettings(tls=authority.of("ps:0"))) as server,
        presenting(authority.of("worker:0=chief")),
        connected(server.address, CHIEF) as connection,
    ):
        connection.open()
        assert connection.route.way == UNIX


@pytest.mark.parametrize("expected", [Expected("ps", 1), Expected("worker", 0)])
def test_a_client_refuses_another_task_behind_the_port(
    server: ParameterServer, authority: Certified, expected: Expected
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        SocketLink(endpoint(server, authority.of("worker:0=chief"), expected))


@pytest.mark.parametrize("expected", [THE_SERVER, Expected("ps"), Expected()])
def test_a_client_takes_any_server_that_it_means(
    server: ParameterServer, authority: Certified, expected: Expected
) -> None:
    SocketLink(endpoint(server, authority.of("worker:0=chief"), expected)).close()


def test_a_client_refuses_a_server_that_others_have_certified(
    server: ParameterServer, tmp_path: Path
) -> None:
    foreign = certified(tmp_path / "foreign").of("worker:0=chief")
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed certificate"):
        SocketLink(endpoint(server, foreign))


def refused(of: TcpEndpoint, caplog: pytest.LogCaptureFixture, says: str) -> None:
    """Check that the server hangs up before it answers, and its log tells why."""
    caplog.set_level(logging.WARNING, "stratagem_server")
    with pytest.raises(OSError):
        SocketLink(of)
    eventually(lambda: any(says in str(each.msg) for each in caplog.records))


def test_a_server_hangs_up_on_who_was_certified_by_others(
    server: ParameterServer,
    authority: Certified,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign = certified(tmp_path / "foreign").of("worker:0=chief")
    both = [each / "ca.crt" for each in (foreign, authority.folder / "ps-0")]
    (foreign / "ca.crt").write_bytes(b"".join(each.read_bytes() for each in both))
    refused(endpoint(server, foreign), caplog, "CERTIFICATE_VERIFY_FAILED")


def test_a_server_hangs_up_on_who_speaks_no_tls(
    server: ParameterServer, caplog: pytest.LogCaptureFixture
) -> None:
    refused(endpoint(server, None), caplog, "WRONG_VERSION_NUMBER")


def test_a_server_hangs_up_on_who_shows_no_certificate(
    server: ParameterServer, authority: Certified
) -> None:
    context = ssl.create_default_context(cafile=authority.folder / "ps-0" / "ca.crt")
    context.check_hostname = False
    with (
        endpoint(server, None).connect(5) as plain,
        context.wrap_socket(plain) as encrypted,
        pytest.raises(OSError),
    ):
        # The handshake of TLS 1.3 is over for a client before the server has judged it.
        assert encrypted.recv(1) == b""
        raise ConnectionResetError


def test_a_server_hangs_up_on_who_does_not_shake_hands_in_time(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_HELLO_SECONDS", 0.1)
    with endpoint(server, None).connect(20) as silent:
        assert silent.recv(1) == b""
    # Of a record that never comes to its end, too.
    with endpoint(server, None).connect(20) as slow:
        slow.sendall(b"\x16\x03\x01\x40\x00\x01")
        assert slow.recv(1) == b""


def test_the_socket_of_a_session_is_for_the_task_that_has_opened_it(
    server: ParameterServer, authority: Certified, connection: Connection
) -> None:
    assert connection.session is not None
    session_id = connection.session.identifier
    request = HeartbeatRequest(session_id=connection.session.credential).SerializeToString()
    path = b"/stratagem_proto.v1.ParameterServerService/Heartbeat"
    thief = endpoint(server, authority.of("worker:1"), session_id=session_id)
    says = "called with the role chief, and with the certificate of /job:worker/task:1"
    with closing(SocketLink(thief)) as link:
        link.send(FrameKind.CALL, request, is_last=True, path=path)
        with pytest.raises(PermissionDeniedError, match=says), translated("ps", "Heartbeat"):
            require_ok(link.receive())


def test_a_denied_certificate_counts_no_more_on_a_connection_or_for_another(
    server: ParameterServer,
    authority: Certified,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown = authority.folder / "worker-0"
    add(connection, "v", torch.ones(2))
    denied = authority.folder / "ps-0" / "denied.txt"
    denied.write_text(f"{serial(shown):x}\n")
    with pytest.raises(UnauthenticatedError, match="is among the denied ones"):
        add(connection, "v", torch.ones(2))
    refused(endpoint(server, shown), caplog, "is among the denied ones")


@pytest.mark.full("expired certificates are refused in test_certified_matrix.py")
def test_requests_over_a_connection_are_refused_once_its_certificate_has_expired(
    server: ParameterServer, authority: Certified, caplog: pytest.LogCaptureFixture
) -> None:
    shown = authority.of("worker:0=chief", days=5 / 86_400)
    again = endpoint(server, shown)
    with presenting(shown), connected(server.address, CHIEF) as connection:
        make(connection, "v", torch.zeros(2))
        assert connection.route.way == TCP
        deadline = time.monotonic() + 20
        with pytest.raises(UnauthenticatedError, match="has expired at"):
            while time.monotonic() < deadline:
                add(connection, "v", torch.ones(2))
    refused(again, caplog, "certificate has expired")


def test_a_renewed_certificate_is_shown_on_another_connection(
    authority: Certified, connection: Connection
) -> None:
    former = serial(authority.folder / "worker-0")
    sockets = connection.route.transport._chosen
    assert isinstance(sockets, SocketTransport)
    (link,) = sockets._links._idle._plain
    authority.of("worker:0=chief")
    eventually(lambda: link.stream.is_worn)
    (authority.folder / "ps-0" / "denied.txt").write_text(f"{former:x}\n")
    add(connection, "v", torch.ones(2))
    assert value_of(connection, "v", torch.zeros(2)).tolist() == [1, 1]
    assert connection.route.way == TCP


def test_where_both_ends_do_not_come_to_terms_requests_go_by_grpc_for_a_while(
    connection: Connection,
) -> None:
    sockets = connection.route.transport._chosen
    assert isinstance(sockets, SocketTransport)
    sockets.invalidate()
    other = replace(cast(TcpEndpoint, sockets._links.endpoint), expected=Expected("ps", 1))
    sockets._links.endpoint = other
    add(connection, "v", torch.ones(2))
    assert connection.route.transport._in_cooldown()
    assert value_of(connection, "v", torch.zeros(2)).tolist() == [1, 1]


@pytest.fixture
def served(authority: Certified) -> Iterator[Served]:
    loop = LoopThread.acquire()
    with presenting(authority.of("worker:0=chief")):
        running = Served(loop, TCP, authority.of("ps:0"))
        yield running
        running.transport.close()
        running.stop()
    loop.release()


def pipelined(served: Served, message: bytes) -> Attempt:
    call = Call("/echo.Echo/Echo", lambda _: iter([message]), 20.0, style=Style.PIPELINED)
    return served.transport.send(call)


def test_pipelined_calls_are_answered_across_a_renewal(
    served: Served, authority: Certified
) -> None:
    before = [pipelined(served, b"%d" % number) for number in range(3)]
    former = served.transport._pipeline
    assert former is not None
    authority.of("worker:0=chief")
    eventually(lambda: former.is_worn)
    after = [pipelined(served, b"%d" % number) for number in range(3, 6)]
    assert served.transport._pipeline is not former
    assert not former.is_broken
    for attempt in (*before, *after):
        attempt.push()
    answers = [bytes(next(attempt.responses)) for attempt in (*before, *after)]
    assert answers == [b"%d" % number for number in range(6)]
    assert former.is_broken
    eventually(lambda: len(served.listener._peers) == 1)


def test_a_transport_that_is_closed_ends_pipelined_calls_of_before_a_renewal(
    served: Served, authority: Certified
) -> None:
    before = pipelined(served, b"before")
    former = served.transport._pipeline
    assert former is not None
    authority.of("worker:0=chief")
    eventually(lambda: former.is_worn)
    pipelined(served, b"after")
    served.transport.close()
    with pytest.raises(grpc.RpcError):
        list(before.responses)
