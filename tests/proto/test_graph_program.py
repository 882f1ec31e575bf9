from __future__ import annotations

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.programs.graph_program import MAX_NODES, check_graph, digest
from stratagem_proto.v1.update_program_pb2 import GraphInput, GraphNode, GraphProgram
from tests.graph_programs import (
    ADD_TO_INPUT,
    Ref,
    node,
    number,
    program,
    read,
    tensor,
    written,
)


def refused(*nodes: GraphNode, inputs: list[GraphInput] | None = None) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        check_graph(program(inputs or [written()], *nodes, ADD_TO_INPUT))
    return str(caught.value)


def test_a_program_that_writes_its_variable_passes() -> None:
    values = check_graph(
        program(
            [written(), number(), tensor()],
            node("scalar.mul", Ref(1), -1.0),
            node("aten.view.default", Ref(0), [-1]),
            node("aten.add_.Tensor", Ref(4), Ref(2), alpha=Ref(3)),
        )
    )
    assert [value.is_tensor for value in values] == [
        True,
        False,
        True,
        False,
        True,
        True,
    ]
    assert [value.root for value in values] == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize(
    "operation",
    [
        "aten.from_file.default",
        "aten.empty.memory_format",
        "aten.randn.default",
        "aten.set_.source_Tensor",
        "aten.as_strided.default",
        "prim.print",
        "os.system",
        "",
    ],
)
def test_an_operation_outside_of_the_allow_list_is_refused_by_line(
    operation: str,
) -> None:
    message = refused(node(operation, "/etc/passwd"))
    assert message.startswith(f"train.py:7: {operation}: ")
    assert "allow-list" in message


def test_the_error_carries_the_location() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_graph(program([written()], node("aten.nothing.default")))
    assert caught.value.location == "train.py:7"


@pytest.mark.parametrize("number_", [1, 2, 2**31])
def test_a_value_is_used_only_after_it_exists(number_: int) -> None:
    message = refused(node("aten.neg.default", Ref(number_)))
    assert f"value {number_}" in message


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (node("aten.neg.default"), "'self' is missing"),
        (node("aten.neg.default", Ref(0), Ref(0)), "1 positional"),
        (node("aten.neg.default", Ref(0), self=Ref(0)), "given twice"),
        (node("aten.neg.default", Ref(0), out=Ref(0)), "no argument 'out'"),
        (node("aten.zeros.default", [2], device="meta"), "no argument 'device'"),
        (node("aten.neg.default", 1.0), "'self' must be of type Tensor"),
        (node("aten.neg.default", None), "'self' must be of type Tensor"),
        (node("aten.view.default", Ref(0), 3), "'size' must be a list"),
        (node("aten.view.default", Ref(0), [1.5]), "'size' must be of type"),
        (node("aten.view.default", Ref(0), [[1]]), "'size' must be of type"),
        (node("aten.view.default", Ref(0), [Ref(1)]), "'size' must be of type"),
        (node("aten.sum.dim_IntList", Ref(0), [0], 1), "'keepdim' must be of type"),
        (node("aten.sum.default", Ref(0), dtype=1), "'dtype' must be of type"),
        (node("aten.maximum.default", Ref(0), 1.0), "'other' must be of type"),
        (node("aten.arange.default", Ref(1)), "'end' must be of type"),
        (
            node("aten.div.Tensor_mode", Ref(0), 2.0, rounding_mode="rm -rf"),
            "'rounding_mode' must be of type",
        ),
        (node("scalar.mul", Ref(1)), "takes 2 numbers"),
        (node("scalar.mul", Ref(1), Ref(0)), "must be of type number"),
        (node("scalar.mul", Ref(1), "x"), "must be of type number"),
    ],
)
def test_arguments_have_to_fit_the_schema(bad: GraphNode, what: str) -> None:
    assert what in refused(bad, inputs=[written(), number()])


def test_a_list_has_a_limited_length() -> None:
    with pytest.raises(ResourceExhaustedError, match="1001 items in 'tensors'"):
        check_graph(program([written()], node("aten.cat.default", [Ref(0)] * 1001), ADD_TO_INPUT))


@pytest.mark.parametrize("source", [read(), tensor()])
def test_only_variables_to_be_written_are_written(source: GraphInput) -> None:
    message = refused(node("aten.neg_.default", Ref(1)), inputs=[written(), source])
    assert "writes input 1 (weight)" in message


@pytest.mark.parametrize(
    "view",
    [
        node("aten.t.default", Ref(1)),
        node("aten.unsqueeze.default", Ref(1), 0),
        node("aten._unsafe_view.default", Ref(1), [-1]),
        node("aten.slice.Tensor", self=Ref(1), end=1),
    ],
)
def test_a_write_through_a_view_is_a_write(view: GraphNode) -> None:
    write = node("aten.neg_.default", Ref(2))
    assert "writes input 1" in refused(view, write, inputs=[written(), read()])


def test_a_new_tensor_may_be_written() -> None:
    check_graph(
        program(
            [written(), read()],
            node("aten.neg.default", Ref(1)),
            node("aten.sqrt_.default", Ref(2)),
            node("aten.add_.Tensor", Ref(0), Ref(3)),
        )
    )


def test_a_variable_given_to_write_has_to_be_written() -> None:
    with pytest.raises(InvalidArgumentError, match="never writes input 1"):
        check_graph(program([written(), written()], ADD_TO_INPUT))


def test_a_program_has_to_write_something() -> None:
    with pytest.raises(InvalidArgumentError, match="writes no variable"):
        check_graph(program([read()], node("aten.neg.default", Ref(0))))


def test_too_many_nodes_are_refused() -> None:
    nodes = [ADD_TO_INPUT] * (MAX_NODES + 1)
    with pytest.raises(ResourceExhaustedError, match=f"at most {MAX_NODES}"):
        check_graph(program([written()], *nodes))


@pytest.mark.parametrize(
    "source",
    [
        GraphInput(),
        GraphInput(kind=GraphInput.KIND_WRITE),
        GraphInput(kind=9, dtype=written().dtype),  # type: ignore[arg-type]
        number(torch.float32),
    ],
)
def test_inputs_have_to_be_described(source: GraphInput) -> None:
    with pytest.raises(InvalidArgumentError):
        check_graph(program([source], ADD_TO_INPUT))


def test_the_digest_is_of_what_a_program_does() -> None:
    one = program([written()], ADD_TO_INPUT)
    other = GraphProgram()
    other.CopyFrom(one)
    other.inputs[0].label = "bias"
    other.nodes[0].location = "other.py:1"
    assert digest(one) == digest(other)
    other.nodes[0].arguments[1].number = 2.0
    assert digest(one) != digest(other)
