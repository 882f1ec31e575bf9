"""Asking a server which variables it hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.v1.variable_pb2 import VariableInfo, VariableKind
from stratagem_proto.v1.variable_requests_pb2 import (
    ListVariablesRequest,
    ListVariablesResponse,
)


def list_variables(
    kinds: Sequence[VariableKind.ValueType] = (),
) -> Request[list[VariableInfo]]:
    """The request for the variables of these kinds, or all, in order of creation."""
    return Request("ListVariables", ListVariablesRequest(kinds=kinds), _listed)


def _listed(responses: Iterator[bytes]) -> list[VariableInfo]:
    return list(sole(ListVariablesResponse)(responses).variables)
