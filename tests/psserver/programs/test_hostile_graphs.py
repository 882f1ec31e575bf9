"""Graph programs that no client of ours would send, sent to a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import (
    GraphNode,
    GraphProgram,
    InputBinding,
    UpdateProgram,
)
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.graph_programs import ADD_TO_INPUT, Ref, node, program, written
from tests.psserver.wire import RawClient, encoded

PASSWORDS = program(
    [written()], node("aten.from_file.default", "/etc/passwd"), ADD_TO_INPUT
)
TERABYTE = program(
    [written()],
    node("aten.expand.default", Ref(0), [10**12 // 12, 3]),
    node("aten.clone.default", Ref(1)),
    ADD_TO_INPUT,
)
MILLION = program([written()])
MILLION.nodes.extend([GraphNode(operation="aten.neg.default")] * 1_000_000)
IDLE = program([written()], node("aten.neg.default", Ref(0)))


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(weight=torch.ones(3))
        yield client


def run(client: RawClient, graph: GraphProgram) -> None:
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(graph=graph),
        bindings=[InputBinding(variable="weight")],
    )
    client.upload("Update", encoded(header, []), pb.UpdateResponse)


@pytest.mark.parametrize(
    ("hostile", "error", "says"),
    [
        (PASSWORDS, InvalidArgumentError, r"aten\.from_file"),
        (TERABYTE, InvalidArgumentError, "bytes"),
        (MILLION, ResourceExhaustedError, "1000000 nodes"),
        (IDLE, InvalidArgumentError, "never writes"),
    ],
    ids=["from_file", "a terabyte", "a million nodes", "no write"],
)
def test_a_hostile_graph_is_refused_before_anything_runs(
    client: RawClient, hostile: GraphProgram, error: type[Exception], says: str
) -> None:
    before = client.everything()
    with pytest.raises(error, match=says):
        run(client, hostile)
    assert client.everything() == before


def test_the_server_goes_on_after_a_hostile_graph(client: RawClient) -> None:
    with pytest.raises(InvalidArgumentError):
        run(client, PASSWORDS)
    run(client, program([written()], ADD_TO_INPUT))
    assert client.read("weight")[0].tolist() != [1.0] * 3
