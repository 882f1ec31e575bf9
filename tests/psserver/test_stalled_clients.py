"""Clients of a socket that stop in the middle of a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.session_pb2 import OpenSessionResponse
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET, AssignHeader, Assignment
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import TCP, UNIX
from stratagem_rpc.sockets.client import SocketLink, endpoints
from stratagem_rpc.sockets.frames import FrameKind, SocketFrame
from tests.conftest import TOKEN
from tests.psserver.wire import LARGE, SERVICE, RawClient, encoded
from tests.waiting import eventually

DEADLINE_EXCEEDED = 4


class Impatient(ParameterServer):
    patience = 0.05


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with Impatient(ServerSettings(token=TOKEN)) as running:
        yield running


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        yield client


def assignment(client: RawClient, value: torch.Tensor) -> list[bytes]:
    header = AssignHeader(
        key=client.key(),
        assignments=[Assignment(variable="v", mode=ASSIGN_MODE_SET, value=0)],
        tensors=[spec_of(value)],
    )
    return encoded(header, [value])


def link_to(server: ParameterServer, opened: OpenSessionResponse, way: str) -> SocketLink:
    return SocketLink(next(endpoints(opened.frame_sockets, server.address, way)))


def sent(link: SocketLink, method: str, messages: list[bytes], whole: bool) -> SocketFrame:
    """Begins a call, and returns the first frame of its answer."""
    kind, path = FrameKind.CALL, f"/{SERVICE}/{method}".encode()
    for index, message in enumerate(messages):
        is_last = whole and index == len(messages) - 1
        link.send(kind, message, is_last, path)
        kind, path = FrameKind.MESSAGE, b""
    return next(link.frames())


@pytest.mark.parametrize("way", [UNIX, TCP])
def test_an_upload_that_stops_gives_its_memory_and_its_number_back(
    server: ParameterServer, client: RawClient, way: str
) -> None:
    opened = client.open()
    client.create(v=torch.zeros(LARGE))
    messages = assignment(client, torch.ones(LARGE))
    with closing(link_to(server, opened, way)) as link:
        refused = sent(link, "Assign", messages[:1], whole=False)
    status = RecordedStatus.FromString(bytes(refused.message))
    assert status.code == DEADLINE_EXCEEDED
    assert "did not come in 0.05 s" in status.message
    assert server._state.budget.used == 0
    with closing(link_to(server, opened, way)) as link:
        assert sent(link, "Assign", messages, whole=True).kind == FrameKind.MESSAGE
    assert client.read("v")[0].eq(1).all()


@pytest.mark.parametrize("way", [UNIX, TCP])
def test_a_read_that_nobody_takes_gives_its_memory_back_and_hangs_up(
    server: ParameterServer, client: RawClient, way: str
) -> None:
    opened = client.open()
    client.create(v=torch.zeros(LARGE))
    # More than the buffers of a socket between hosts take.
    selections = [pb.Selection(variable="v")] * 32
    read = pb.ReadRequest(session_id=client.session_id, selections=selections)
    with closing(link_to(server, opened, way)) as link:
        first = sent(link, "Read", [read.SerializeToString()], whole=True)
        assert first.kind == FrameKind.MESSAGE
        assert server._state.budget.used > 0
        eventually(lambda: server._state.budget.used == 0)
        with pytest.raises(ConnectionError):
            while True:
                list(link.frames())
