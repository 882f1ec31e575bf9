"""Divisions of integers that would end the process are refused, and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import (
    GraphNode,
    GraphProgram,
    InputBinding,
    UpdateProgram,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import compile_graph
from tests.graph_programs import Ref, node, program, tensor, written
from tests.psserver.process import serving
from tests.psserver.wire import RawClient, encoded

SMALLEST = torch.iinfo(torch.int64).min

DIVISIONS = {
    "trunc": node("aten.div_.Tensor_mode", Ref(0), Ref(1), rounding_mode="trunc"),
    "floor": node("aten.div_.Tensor_mode", Ref(0), Ref(1), rounding_mode="floor"),
    "by a number": node("aten.div_.Tensor_mode", Ref(0), -1, rounding_mode="trunc"),
    "floor_divide": node("aten.floor_divide_.Tensor", Ref(0), Ref(1)),
    "fmod": node("aten.fmod_.Tensor", Ref(0), Ref(1)),
    "fmod by a number": node("aten.fmod_.Scalar", Ref(0), -1),
    "remainder": node("aten.remainder_.Tensor", Ref(0), Ref(1)),
}


def dividing(division: GraphNode, dtype: torch.dtype = torch.int64) -> GraphProgram:
    return program([written(dtype), tensor(dtype)], division)


@pytest.mark.cluster
def test_the_server_goes_on_after_a_division_that_would_end_it(tmp_path: Path) -> None:
    divisor, value = torch.full((3,), -1), torch.tensor([7, SMALLEST, 8])
    with serving(tmp_path) as server, RawClient(server.address, "") as client:
        client.open()
        client.create(count=value)
        for division in DIVISIONS.values():
            header = pb.UpdateHeader(
                key=client.key(),
                program=UpdateProgram(graph=dividing(division)),
                bindings=[InputBinding(variable="count"), InputBinding(tensor=0)],
                tensors=[spec_of(divisor)],
            )
            with pytest.raises(InvalidArgumentError, match=r"train\.py:7.*by -1"):
                client.upload("Update", encoded(header, [divisor]), pb.UpdateResponse)
        assert torch.equal(client.read("count")[0], value)


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_other_numbers_are_divided_as_torch_does(division: str, dtype: torch.dtype) -> None:
    smallest = torch.iinfo(dtype).min
    value = torch.tensor([smallest, smallest + 1, 7, -7], dtype=dtype)
    divisor = torch.tensor([3, -1, -1, 2], dtype=dtype)
    if "number" in division:
        value[0] += 1
    expected = value.clone()
    graph = dividing(DIVISIONS[division], dtype)
    bindings = [value, divisor]
    prepare(compile_graph(graph), bindings).run()
    by = -1 if "number" in division else divisor
    if "fmod" in division:
        expected = torch.fmod(expected, by)
    elif "remainder" in division:
        expected = torch.remainder(expected, by)
    else:
        mode = "floor" if "floor" in division else "trunc"
        expected = torch.div(expected, by, rounding_mode=mode)
    assert torch.equal(value, expected)


def test_a_sum_of_types_is_divided_in_the_larger_one() -> None:
    value = torch.tensor([torch.iinfo(torch.int32).min])
    graph = program(
        [written(), tensor(torch.int32)],
        node("aten.div_.Tensor_mode", Ref(0), Ref(1), rounding_mode="trunc"),
    )
    graph.inputs[0].CopyFrom(written(torch.int64))
    prepare(compile_graph(graph), [value, torch.tensor([-1]).int()]).run()
    assert value.tolist() == [1 << 31]
