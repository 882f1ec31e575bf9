"""Connections in a process that was forked from the one that made them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

import torch

from stratagem._ps_client.requests.writes import Writing, assign
from stratagem_proto.errors import (
    ForkedProcessError,
)
from stratagem_proto.v1.parameter_server_pb2 import (
    ASSIGN_MODE_ADD,
)
from stratagem_psserver.server import ParameterServer
from tests.client.connections import (
    add,
    connected,
    make,
)


def told_in_a_forked_child(use: Callable[[], object]) -> str:
    """The message of the error that a use raises in a forked child; "" if none."""
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of exactly what these tests are about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            use()
        except ForkedProcessError as error:
            os.write(sending, str(error).encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as stream:
        message = stream.read().decode()
    os.waitpid(child, 0)
    return message


def test_a_forked_child_is_told_to_use_forkserver(server: ParameterServer) -> None:
    with connected(server.address) as connection:
        connection.open()
        message = told_in_a_forked_child(connection.open)
    assert 'multiprocessing_context="forkserver"' in message


def test_a_child_forked_in_the_midst_of_a_write_does_not_wait_for_it(
    server: ParameterServer,
) -> None:
    with connected(server.address) as connection:
        make(connection, "v", torch.zeros(3))
        writing = Writing("v", ASSIGN_MODE_ADD, torch.ones(3))
        under_way = connection.start(assign([writing]))
        message = told_in_a_forked_child(lambda: add(connection, "v", torch.ones(3)))
        assert under_way.result() == [2]
    assert "was forked from it" in message
