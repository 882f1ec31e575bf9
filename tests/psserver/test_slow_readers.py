"""Clients that read by gRPC and stop in the middle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.wire.frames import Assembler, decode_frame
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, sent_with, sgd
from tests.waiting import eventually

# More than what gRPC sends ahead of who reads.
ELEMENTS = 8 << 20


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with ParameterServer(ServerSettings(token=TOKEN)) as running:
        yield running


@pytest.fixture
def clients(server: ParameterServer) -> Iterator[list[RawClient]]:
    with (
        RawClient(server.address, TOKEN) as one,
        RawClient(server.address, TOKEN) as other,
    ):
        one.open()
        other.open()
        one.create(v=torch.zeros(ELEMENTS))
        yield [one, other]


def begun(client: RawClient) -> tuple[bytes, Iterator[bytes]]:
    """The first message of a read, and the others."""
    selections = [pb.Selection(variable="v")]
    read = pb.ReadRequest(session_id=client.session_id, selections=selections)
    messages = client.download(read)
    return next(messages), messages


def test_what_is_read_stays_as_it_was_while_others_change_it(
    server: ParameterServer, clients: list[RawClient]
) -> None:
    reader, writer = clients
    data, messages = begun(reader)
    first = decode_frame(data, pb.ReadHeader)
    assert first.header is not None
    assert server._state.locks._held
    writer.update(sgd(), {"v": torch.ones(ELEMENTS)})
    assert writer.read("v")[0].eq(-1).all()
    assembler = Assembler(sent_with(first.header))
    assembler.add(first.chunks)
    for message in messages:
        assembler.add(decode_frame(message, pb.ReadHeader).chunks)
    assert assembler.finish()[0].eq(0).all()


def test_two_read_the_same_at_once(clients: list[RawClient]) -> None:
    _, messages = begun(clients[0])
    assert clients[1].read("v")[0].eq(0).all()
    assert len(list(messages)) == ELEMENTS * 4 // (1 << 20) - 1


def test_a_read_that_is_given_up_gives_locks_and_memory_back(
    server: ParameterServer, clients: list[RawClient]
) -> None:
    _, messages = begun(clients[0])
    assert server._state.budget.used
    messages.close()  # type: ignore[attr-defined]  # it is a generator
    eventually(lambda: not server._state.locks._held)
    eventually(lambda: not server._state.budget.used)
