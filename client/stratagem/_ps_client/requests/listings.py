"""Asking a server which variables it hosts, and of which keys it stores rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stratagem._ps_client.requests.request import Request, sole
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.v1.variable_pb2 import VariableInfo, VariableKind
from stratagem_proto.v1.variable_requests_pb2 import ListVariablesRequest, ListVariablesResponse
from stratagem_proto.wire.tensors import int64_vector


def list_variables(kinds: Sequence[VariableKind.ValueType] = ()) -> Request[list[VariableInfo]]:
    """Return the request for variables of these kinds, or all, by their creation."""
    return Request("ListVariables", ListVariablesRequest(kinds=kinds), _listed)


def _listed(responses: Iterator[bytes]) -> list[VariableInfo]:
    return list(sole(ListVariablesResponse)(responses).variables)


@dataclass(frozen=True)
class KeyPage:
    """Some keys of a table on one server.

    Attributes:
        keys: int64 vector, ascending.
        is_last: Whether there are none that are larger.
    """

    keys: torch.Tensor
    is_last: bool


def list_keys(table: str, after: int | None, limit: int, snapshot: bytes = b"") -> Request[KeyPage]:
    """Return the request for the smallest keys of a table that follow on one.

    Args:
        table: Name of the table, or of its part on the server.
        after: Only larger keys; None for all.
        limit: The most keys; 0 for as many as the server gives at a time.
        snapshot: The cut whose keys to list; empty for those of now.
    """
    message = ListKeysRequest(table=table, after=after, limit=limit, snapshot=snapshot)
    return Request("ListKeys", message, _page)


def _page(responses: Iterator[bytes]) -> KeyPage:
    response = sole(ListKeysResponse)(responses)
    if len(response.keys) % 8:
        raise MalformedStreamError(
            f"the keys of a table came in {len(response.keys)} bytes, which is no "
            "multiple of the 8 of an int64"
        )
    return KeyPage(int64_vector(response.keys), not response.more)
