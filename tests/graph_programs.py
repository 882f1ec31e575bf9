"""Graph programs written out node by node, as a client might send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.v1.update_program_pb2 import (
    GraphArgument,
    GraphArgumentList,
    GraphInput,
    GraphNode,
    GraphProgram,
)
from stratagem_proto.wire.tensors import encode_dtype


@dataclass(frozen=True)
class Ref:
    """The value of this number."""

    number: int


Argument = Ref | bool | int | float | str | torch.dtype | None | Sequence["Argument"]


def argument(value: Argument) -> GraphArgument:
    match value:
        case Ref():
            return GraphArgument(value=value.number)
        case None:
            return GraphArgument()
        case bool():
            return GraphArgument(flag=value)
        case int():
            return GraphArgument(integer=value)
        case float():
            return GraphArgument(number=value)
        case str():
            return GraphArgument(text=value)
        case torch.dtype():
            return GraphArgument(dtype=encode_dtype(value))
        case _:
            items = [argument(item) for item in value]
            return GraphArgument(list=GraphArgumentList(items=items))


def node(operation: str, *arguments: Argument, **keywords: Argument) -> GraphNode:
    return GraphNode(
        operation=operation,
        arguments=[argument(one) for one in arguments],
        keywords={name: argument(one) for name, one in keywords.items()},
        location="train.py:7",
    )


def written(dtype: torch.dtype = torch.float32) -> GraphInput:
    return _input(GraphInput.KIND_WRITE, dtype)


def read(dtype: torch.dtype = torch.float32) -> GraphInput:
    return _input(GraphInput.KIND_READ, dtype)


def tensor(dtype: torch.dtype = torch.float32) -> GraphInput:
    return _input(GraphInput.KIND_TENSOR, dtype)


def number(dtype: torch.dtype = torch.float64) -> GraphInput:
    return _input(GraphInput.KIND_NUMBER, dtype)


def _input(kind: GraphInput.Kind, dtype: torch.dtype) -> GraphInput:
    return GraphInput(kind=kind, dtype=encode_dtype(dtype), label="weight")


def program(inputs: Sequence[GraphInput], *nodes: GraphNode) -> GraphProgram:
    return GraphProgram(inputs=inputs, nodes=nodes)


ADD_TO_INPUT = node("aten.add_.Tensor", Ref(0), 1.0)
