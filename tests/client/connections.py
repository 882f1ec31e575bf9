"""Connections to servers, and the simplest requests over them, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.reads import Reading, read
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


def make(connection: Connection, name: str, value: torch.Tensor) -> None:
    spec = VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
    connection.call(create([spec], [value]))


def add(connection: Connection, name: str, value: torch.Tensor) -> int:
    (version,) = connection.call(assign([Writing(name, ASSIGN_MODE_ADD, value)]))
    return version


def value_of(connection: Connection, name: str, like: torch.Tensor) -> torch.Tensor:
    into = torch.full_like(like, -1)
    connection.call(read([Reading(name, into)]))
    return into
