"""Graph programs that no client of ours would send, sent to a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    VariableNotFoundError,
)
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

PASSWORDS = program([written()], node("aten.from_file.default", "/etc/passwd"), ADD_TO_INPUT)
TERABYTE = program(
    [written()],
    node("aten.expand.default", Ref(0), [10**12 // 12, 3]),
    node("aten.clone.default", Ref(1)),
    ADD_TO_INPUT,
)
IDLE = program([written()], node("aten.neg.default", Ref(0)))


def million() -> GraphProgram:
    graph = program([written()])
    graph.nodes.extend([GraphNode(operation="aten.neg.default")] * 1_000_000)
    return graph


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
        (lambda: PASSWORDS, InvalidArgumentError, r"aten\.from_file"),
        (lambda: TERABYTE, InvalidArgumentError, "bytes"),
        (million, ResourceExhaustedError, "1000000 nodes"),
        (lambda: IDLE, InvalidArgumentError, "never writes"),
    ],
    ids=["from_file", "a terabyte", "a million nodes", "no write"],
)
def test_a_hostile_graph_is_refused_before_anything_runs(
    client: RawClient, hostile: Callable[[], GraphProgram], error: type[Exception], says: str
) -> None:
    before = client.everything()
    with pytest.raises(error, match=says):
        run(client, hostile())
    assert client.everything() == before


ILL_TYPED = {
    "a shape of text": node("aten.view.default", Ref(0), "abc"),
    "a shape of fractions": node("aten.view.default", Ref(0), [1.5]),
    "a shape of booleans": node("aten.view.default", Ref(0), [True]),
    "a shape in a list": node("aten.view.default", Ref(0), [[3]]),
    "a variable as a shape": node("aten.view.default", Ref(0), [Ref(0)]),
    "too large an array": node("aten.zeros.default", [2**63 - 1]),
    "strides that overflow": node("aten.zeros.default", [2**62, 2**62, 0]),
    "strides of its own": node("aten.as_strided.default", Ref(0), [2, 2], [2**62, 2**62]),
    "a path": node("aten.clone.default", Ref(0), memory_format="/etc/passwd"),
    "a path of torch": node("aten.clone.default", Ref(0), memory_format="load"),
    "a format by number": node("aten.clone.default", Ref(0), memory_format=3),
    "a boolean alpha": node("aten.add_.Tensor", Ref(0), Ref(0), alpha=True),
    "an alpha of text": node("aten.add_.Tensor", Ref(0), Ref(0), alpha="floor"),
    "no type of elements": node("aten._to_copy.default", Ref(0), dtype="contiguous_format"),
    "numbers as tensors": node("aten.cat.default", [1.0]),
    "no tensors": node("aten.cat.default", None),
    "a long operation": node("aten." + "x" * 5_000, Ref(0)),
    "a long keyword": node("aten.add_.Tensor", Ref(0), Ref(0), **{"a" * 5_000: 1}),
    "a long option": node("aten.div.Tensor_mode", Ref(0), 2, rounding_mode="x" * 5_000),
}


@pytest.mark.parametrize("ill_typed", ILL_TYPED)
def test_arguments_of_a_wrong_type_are_refused_by_line(client: RawClient, ill_typed: str) -> None:
    before = client.everything()
    graph = program([written()], ADD_TO_INPUT, ILL_TYPED[ill_typed], ADD_TO_INPUT)
    with pytest.raises(InvalidArgumentError, match=r"train\.py:7: aten\.") as caught:
        run(client, graph)
    assert len(str(caught.value)) < 2_000
    assert client.everything() == before


def test_a_long_name_of_a_variable_is_refused_in_few_words(client: RawClient) -> None:
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(graph=program([written()], ADD_TO_INPUT)),
        bindings=[InputBinding(variable="n" * 5_000)],
    )
    with pytest.raises(VariableNotFoundError) as caught:
        client.upload("Update", encoded(header, []), pb.UpdateResponse)
    assert len(str(caught.value)) < 2_000


def test_the_server_goes_on_after_a_hostile_graph(client: RawClient) -> None:
    with pytest.raises(InvalidArgumentError):
        run(client, PASSWORDS)
    run(client, program([written()], ADD_TO_INPUT))
    assert client.read("weight")[0].tolist() != [1.0] * 3
