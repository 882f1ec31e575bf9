"""Variables to trace with, and what became of a traced function."""

from __future__ import annotations

import torch

from stratagem._core.variables import LocalVariable
from stratagem._tracing.trace import TracedUpdate
from stratagem_proto.v1.update_program_pb2 import GraphInput


def variable(name: str = "v", *shape: int) -> LocalVariable:
    return LocalVariable(torch.zeros(shape or (3, 4)), name=name)


def ones() -> torch.Tensor:
    return torch.ones(3, 4)


def operations(update: TracedUpdate) -> list[str]:
    return [one.operation.split(".")[1] for one in update.program.nodes]


def kinds(update: TracedUpdate) -> list[str]:
    return [GraphInput.Kind.Name(one.kind).removeprefix("KIND_") for one in update.program.inputs]


def numbers(update: TracedUpdate) -> list[object]:
    return [one for one in update.bindings if isinstance(one, int | float)]
