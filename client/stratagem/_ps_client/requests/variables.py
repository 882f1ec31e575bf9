"""Creating, listing, assigning and deleting variables of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stratagem._ps_client.requests.request import Request, sole
from stratagem._ps_client.transport import Responses
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableKind, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    Assignment,
    AssignMode,
    AssignResponse,
    CreateVariablesHeader,
    CreateVariablesResponse,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
    ListVariablesRequest,
    ListVariablesResponse,
)
from stratagem_proto.wire.tensors import int64_vector, spec_of


@dataclass(frozen=True)
class Writing:
    """What to write to one variable, or to those of its rows whose int64 indices are given."""

    variable: str
    mode: AssignMode
    value: torch.Tensor
    rows: torch.Tensor | None = None


def create(
    specs: Sequence[VariableSpec], values: Sequence[torch.Tensor], training: bytes = b""
) -> Request[CreateVariablesResponse]:
    """Return the request that creates variables with initial values; all or none.

    It tells the server of the training that they belong to, unless that is empty.
    """
    header = CreateVariablesHeader(variables=specs, training=training)
    return Request("CreateVariables", header, sole(CreateVariablesResponse), tensors=values)


def assign(writings: Sequence[Writing]) -> Request[list[int]]:
    """Return the request that writes variables, all at once; it gives their versions after it."""
    attachments = Attachments()
    assignments = [
        Assignment(
            variable=writing.variable,
            mode=writing.mode,
            value=attachments.add(writing.value),
            rows=attachments.add_optional(writing.rows),
        )
        for writing in writings
    ]
    header = AssignHeader(assignments=assignments, tensors=attachments.specs)
    return Request("Assign", header, _assigned, tensors=attachments.tensors)


def _assigned(responses: Responses) -> list[int]:
    return list(sole(AssignResponse)(responses).versions)


def delete(names: Sequence[str]) -> Request[list[str]]:
    """Return the request that deletes variables and their slot variables; all or none.

    It gives the names of all that was deleted.
    """
    message = DeleteVariablesRequest(names=names)
    return Request("DeleteVariables", message, _deleted)


def _deleted(responses: Responses) -> list[str]:
    return list(sole(DeleteVariablesResponse)(responses).names)


class Attachments:
    """The tensors of one request, numbered as they are added."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Take a tensor along and return its number."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def add_optional(self, tensor: torch.Tensor | None) -> int | None:
        """As `add`, for what may be absent."""
        return None if tensor is None else self.add(tensor)

    @property
    def specs(self) -> list[TensorSpec]:
        """Descriptions of the tensors, by number."""
        return [spec_of(tensor) for tensor in self.tensors]


def list_variables(
    kinds: Sequence[VariableKind] = (),
) -> Request[ListVariablesResponse]:
    """Return the request for variables of these kinds, or all, by their creation."""
    message = ListVariablesRequest(kinds=kinds)
    return Request("ListVariables", message, sole(ListVariablesResponse))


@dataclass(frozen=True)
class KeyPage:
    """Some keys of a table on one server: an ascending int64 vector, and whether it is the last."""

    keys: torch.Tensor
    is_last: bool


def list_keys(table: str, after: int | None, limit: int, snapshot: bytes = b"") -> Request[KeyPage]:
    """Return the request for the smallest keys of a table, or of its part, larger than `after`.

    With a limit of 0 the server gives as many as it does at a time. A snapshot is the cut whose
    keys to list; empty for those of now.
    """
    message = ListKeysRequest(table=table, after=after, limit=limit, snapshot=snapshot)
    return Request("ListKeys", message, _page)


def _page(responses: Responses) -> KeyPage:
    response = sole(ListKeysResponse)(responses)
    if len(response.keys) % 8:
        raise MalformedStreamError(
            f"the keys of a table came in {len(response.keys)} bytes, which is no "
            "multiple of the 8 of an int64"
        )
    return KeyPage(int64_vector(response.keys), not response.more)
