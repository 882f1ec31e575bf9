"""Connections whose frames come in part, on the server of a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from stratagem_proto.v1.session_pb2 import (
    CloseSessionRequest,
    CloseSessionResponse,
    FrameSockets,
    HeartbeatRequest,
    Task,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import MESSAGE_BYTES, TCP, UNIX
from stratagem_rpc.socket_server import listener, peer
from stratagem_rpc.socket_server import memory as client_memory
from stratagem_rpc.socket_server.memory import FrameMemory
from stratagem_rpc.sockets import frames
from stratagem_rpc.sockets.client import SocketLink, endpoints
from stratagem_rpc.sockets.frames import FrameKind, prefix
from tests.conftest import TOKEN
from tests.psserver.process import ServerProcess, serving
from tests.psserver.test_stalled_clients import assignment, sent
from tests.psserver.test_strangers import memory_of
from tests.psserver.wire import LARGE, SECONDS, SERVICE, RawClient
from tests.waiting import eventually

FRAMES, MEBIBYTE = 200, 1 << 20
STAGED_BYTES = 64 * MEBIBYTE
PATH, HEARTBEAT = f"/{SERVICE}/Update".encode(), f"/{SERVICE}/Heartbeat".encode()
OTHER = Task(job="worker", index=1)


def announced(link: SocketLink, sending: int) -> None:
    """Announces the largest frame, and sends as much of it as the server reads at once."""
    link._socket.sendall(prefix(FrameKind.CALL, MESSAGE_BYTES, True, PATH) + bytes(1024))
    link._socket.settimeout(0.02)
    with suppress(TimeoutError):
        link._socket.sendall(bytes(sending))


Links: TypeAlias = Callable[[ParameterServer | ServerProcess, FrameSockets, int], list[SocketLink]]


@pytest.fixture
def links() -> Iterator[Links]:
    """Opens so many connections of a session, by either kind of socket in turn."""
    opened = list[SocketLink]()

    def connected(
        server: ParameterServer | ServerProcess, told: FrameSockets, number: int
    ) -> list[SocketLink]:
        ways = [next(endpoints(told, server.address, way)) for way in (UNIX, TCP)]
        for index in range(number):
            opened.append(SocketLink(ways[index % 2]))
        return opened[len(opened) - number :]

    yield connected
    for link in opened:
        link.close()


def is_hung_up(link: SocketLink) -> bool:
    link._socket.setblocking(False)
    try:
        return not link._socket.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.cluster
def test_half_sent_frames_take_no_more_than_the_budget_and_keep_nobody_out(
    links: Links, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = ["--token-file", str(token), "--staged-bytes", str(STAGED_BYTES)]
    with (
        serving(tmp_path, *options) as server,
        RawClient(server.address, TOKEN) as client,
        RawClient(server.address, TOKEN, OTHER) as greedy,
    ):
        mine = client.open().frame_sockets
        client.create(v=torch.zeros(LARGE))
        told, before = greedy.open().frame_sockets, memory_of(server)
        for number, link in enumerate(hogs := links(server, told, FRAMES)):
            announced(link, 0 if number < FRAMES // 2 else MEBIBYTE * number // 6)
        (link,) = links(server, mine, 1)
        answer = sent(link, "Assign", assignment(client, torch.ones(LARGE)), whole=True)
        assert answer.kind == FrameKind.MESSAGE
        assert memory_of(server) - before < STAGED_BYTES + 50 * MEBIBYTE
        # What they leave is not taken by those that had waited.
        for link in hogs:
            link.close()
        client.heartbeat()
        assert memory_of(server) - before < STAGED_BYTES + 50 * MEBIBYTE


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ParameterServer]:
    monkeypatch.setattr(listener, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(client_memory, "LEAST_BYTES", 8 * MEBIBYTE)
    monkeypatch.setattr(frames, "_FIRST_BYTES", 2 * MEBIBYTE)
    with ParameterServer(ServerSettings(token=TOKEN, staged_bytes=1)) as running:
        yield running


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        yield client


def memory(server: ParameterServer) -> FrameMemory:
    assert server._sockets is not None
    return server._sockets.memory


def test_a_frame_for_which_there_is_no_memory_goes_on_once_there_is(
    links: Links, server: ParameterServer, client: RawClient
) -> None:
    told = client.open().frame_sockets
    hogs, waiting = links(server, told, 3), links(server, told, 2)
    for link in hogs:
        announced(link, 0)
    # Its share is six MiB.
    eventually(lambda: memory(server).used == 6 * MEBIBYTE)
    beat = HeartbeatRequest(session_id=client.session_id, doing="x" * MEBIBYTE)

    def answered(link: SocketLink) -> int:
        link.allow(SECONDS)
        link.send(FrameKind.CALL, beat.SerializeToString(), True, HEARTBEAT)
        return link.receive(time.monotonic() + SECONDS).kind

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(answered, link) for link in waiting]
        eventually(lambda: len(memory(server)._waiting) == 2)
        assert memory(server).used == 6 * MEBIBYTE
        hogs[0].close()
        assert [each.result() for each in answers] == [FrameKind.MESSAGE] * 2
    eventually(lambda: memory(server).used == 4 * MEBIBYTE)


def test_a_frame_has_a_deadline(
    links: Links, server: ParameterServer, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_FRAME_SECONDS", 0.1)
    silent, small, large, late = links(server, client.open().frame_sockets, 4)
    small._socket.sendall(prefix(FrameKind.CALL, 100, True, HEARTBEAT))
    announced(large, 0)
    # Frames that come whole, however long that goes on, are nobody's fault.
    for _ in range(20):
        beat = HeartbeatRequest(session_id=client.session_id).SerializeToString()
        late.send(FrameKind.CALL, beat, True, HEARTBEAT)
        assert late.receive(time.monotonic() + SECONDS).kind == FrameKind.MESSAGE
        time.sleep(0.02)
    eventually(lambda: is_hung_up(small) and is_hung_up(large))
    assert memory(server).used == 0
    assert not is_hung_up(silent)
    assert not is_hung_up(late)


def test_connections_end_with_their_session(
    links: Links, server: ParameterServer, client: RawClient
) -> None:
    opened = links(server, client.open().frame_sockets, 2)
    announced(opened[0], 0)
    with RawClient(server.address, TOKEN, OTHER) as other:
        others = links(server, other.open().frame_sockets, 2)
        request = CloseSessionRequest(session_id=client.session_id)
        client.unary("CloseSession", request, CloseSessionResponse)
        eventually(lambda: all(map(is_hung_up, opened)))
        assert memory(server).used == 0
        assert not any(map(is_hung_up, others))


def test_a_client_has_so_many_connections(
    links: Links, server: ParameterServer, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_MOST_OF_CLIENT", 3)
    told = client.open().frame_sockets
    first, *_ = links(server, told, 3)
    with pytest.raises(OSError):
        links(server, told, 1)
    with RawClient(server.address, TOKEN, OTHER) as other:
        links(server, other.open().frame_sockets, 1)
    first.close()
    eventually(lambda: server._sockets is not None and len(server._sockets._peers) == 3)
