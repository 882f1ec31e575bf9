"""Outputs of graph programs, and repeated answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.programs.graph_program import MAX_OUTPUT_BYTES, MAX_OUTPUTS, decode_output
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import (
    GraphProgram,
    InputBinding,
    UpdateProgram,
)
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import compile_graph
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.graph_programs import (
    ADD_TO_INPUT,
    Ref,
    node,
    number,
    program,
    written,
)
from tests.psserver.exactly_once.closure_runs import key as closure_key
from tests.psserver.wire import RawClient, encoded

DOUBLED = node("aten.mul.Tensor", Ref(0), 2.0)


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(weight=torch.ones(3))
        yield client


def giving(graph: GraphProgram, *outputs: int) -> GraphProgram:
    graph.outputs.extend(outputs)
    return graph


def header_of(client: RawClient, graph: GraphProgram) -> pb.UpdateHeader:
    return pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(graph=graph),
        bindings=[InputBinding(variable="weight")],
    )


def sent(client: RawClient, header: pb.UpdateHeader, method: str = "Update") -> pb.UpdateResponse:
    return client.upload(method, encoded(header, []), pb.UpdateResponse)


@pytest.mark.parametrize("method", ["Update", "UpdateNonSlot"])
def test_a_repeated_request_gives_the_same_and_is_applied_once(
    client: RawClient, method: str
) -> None:
    graph = giving(program([written()], ADD_TO_INPUT, DOUBLED), 2)
    header = header_of(client, graph)
    first, again = sent(client, header, method), sent(client, header, method)
    assert first == again
    assert decode_output(first.outputs[0]).tolist() == [4.0] * 3
    assert client.read("weight")[0].tolist() == [2.0] * 3
    later = sent(client, header_of(client, graph), method)
    assert decode_output(later.outputs[0]).tolist() == [6.0] * 3


def test_a_function_that_runs_again_elsewhere_gets_the_same(
    client: RawClient, server: ParameterServer
) -> None:
    graph = giving(program([written()], ADD_TO_INPUT, DOUBLED), 2)
    with RawClient(server.address, TOKEN) as other:
        other.open()
        headers = [header_of(one, graph) for one in (client, other)]
        for header in headers:
            header.key.closure.CopyFrom(closure_key(number=1, ordinal=1))
        first, again = sent(client, headers[0]), sent(other, headers[1])
    assert first == again and first.outputs
    assert client.read("weight")[0].tolist() == [2.0] * 3


TOO_LARGE = node("aten.expand.default", Ref(0), [MAX_OUTPUT_BYTES // 12 + 1, 3])


@pytest.mark.parametrize(
    ("graph", "error", "says"),
    [
        (
            giving(program([written()], ADD_TO_INPUT, TOO_LARGE), 2),
            InvalidArgumentError,
            "262152 bytes; at most 262144",
        ),
        (
            giving(program([written()], ADD_TO_INPUT, DOUBLED), 3),
            InvalidArgumentError,
            "gives back value 3 of 3",
        ),
        (
            giving(program([written()], ADD_TO_INPUT), *[0] * (MAX_OUTPUTS + 1)),
            ResourceExhaustedError,
            "1001 outputs",
        ),
    ],
    ids=["too large", "no value", "too many"],
)
def test_what_cannot_be_given_back_is_refused_before_anything_runs(
    client: RawClient, graph: GraphProgram, error: type[Exception], says: str
) -> None:
    before = client.everything()
    with pytest.raises(error, match=says):
        sent(client, header_of(client, graph))
    assert client.everything() == before


def test_numbers_are_given_back_as_scalars() -> None:
    graph = giving(
        program(
            [written(), number(), number(torch.int64)],
            node("scalar.neg", Ref(1)),
            node("scalar.add", Ref(2), 1),
            ADD_TO_INPUT,
        ),
        3,
        4,
    )
    run = prepare(compile_graph(graph), [torch.ones(3), 0.1, 2**62])
    half, large = map(decode_output, run.run())
    assert half.dtype is torch.float64 and half.item() == -0.1
    assert large.dtype is torch.int64 and large.item() == 2**62 + 1


def test_memory_of_outputs_is_foreseen() -> None:
    nodes = [DOUBLED, node("aten.mul.Tensor", Ref(1), 2.0), ADD_TO_INPUT]
    weight = torch.ones(1_000)
    plain = prepare(compile_graph(program([written()], *nodes)), [weight]).nbytes
    graph = giving(program([written()], *nodes), 1, 2)
    assert prepare(compile_graph(graph), [weight]).nbytes >= plain + 2 * 8_000


def test_a_run_whose_outputs_do_not_fit_in_memory_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.ones(3)
    graph = giving(program([written()], DOUBLED, ADD_TO_INPUT), 1)
    run = prepare(compile_graph(graph), [weight])

    def fails(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stratagem_psserver.programs.graph_run.encode_output", fails)
    with pytest.raises(MemoryError):
        run.run()
    assert weight.tolist() == [1.0] * 3
