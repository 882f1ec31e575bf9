"""Connections to servers, and the simplest requests over them, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.reads import Reading, read
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Writing, assign, create
from stratagem._ps_client.session import Identity
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_proto.wire.tensors import spec_of
from stratagem_rpc.channel import Deadlines
from tests.conftest import TOKEN

IDENTITY = Identity(ROLE_CHIEF, "worker", 0, TOKEN)


@contextmanager
def connected(
    address: str, identity: Identity = IDENTITY, connect: float = 30.0
) -> Iterator[Connection]:
    connection = Connection(0, address, identity, Deadlines(connect=connect))
    try:
        yield connection
    finally:
        connection.close()


def creation(name: str, value: torch.Tensor) -> Request[Any]:
    spec = VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
    return create([spec], [value])


def make(connection: Connection, name: str, value: torch.Tensor) -> None:
    connection.call(creation(name, value))


def addition(name: str, value: torch.Tensor) -> Request[list[int]]:
    return assign([Writing(name, ASSIGN_MODE_ADD, value)])


def add(connection: Connection, name: str, value: torch.Tensor) -> int:
    (version,) = connection.call(addition(name, value))
    return version


def value_of(connection: Connection, name: str, like: torch.Tensor) -> torch.Tensor:
    into = torch.full_like(like, -1)
    connection.call(read([Reading(name, into)]))
    return into
