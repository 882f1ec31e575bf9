"""Connections in a process that was forked from the one that made them."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.variables import Writing, assign
from stratagem_proto.errors import (
    ForkedProcessError,
)
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.connections import (
    add,
    connected,
    make,
)
from tests.conftest import TOKEN


@contextmanager
def opened() -> Iterator[Connection]:
    """An open connection to a server of its own."""
    with (
        ParameterServer(ServerSettings(token=TOKEN)) as server,
        connected(server.address) as connection,
    ):
        connection.open()
        yield connection


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


def told_when_it_opens() -> str:
    with opened() as connection:
        return told_in_a_forked_child(connection.open)


def told_in_the_midst_of_a_write() -> tuple[str, list[int]]:
    """And the versions that the parent's write has made."""
    with opened() as connection:
        make(connection, "v", torch.zeros(3))
        writing = Writing("v", ASSIGN_MODE_ADD, torch.ones(3))
        under_way = connection.start(assign([writing]))
        message = told_in_a_forked_child(lambda: add(connection, "v", torch.ones(3)))
        return message, list(under_way.result())


def read_by_forks_between_writes() -> int:
    """How many examples workers of a `DataLoader` have read in ten passes."""
    examples = TensorDataset(torch.arange(16))
    loader = DataLoader(examples, batch_size=4, num_workers=2, multiprocessing_context="fork")
    seen = 0
    with opened() as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        make(connection, "v", torch.zeros(3))
        for _ in range(10):
            for (batch,) in loader:
                add(connection, "v", torch.ones(3))
                seen += len(batch)
    return seen


@pytest.mark.full("a forked child is told and harmless; this one asks gRPC")
def test_no_worker_of_a_loader_is_aborted_where_the_environment_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        assert fresh.submit(read_by_forks_between_writes).result(timeout=100) == 160


def test_a_forked_child_is_told_to_use_forkserver(forking: Executor) -> None:
    message = forking.submit(told_when_it_opens).result(timeout=60)
    assert 'multiprocessing_context="forkserver"' in message


@pytest.mark.full("a forked child is told before it can wait")
def test_a_child_forked_in_the_midst_of_a_write_does_not_wait_for_it(
    forking: Executor,
) -> None:
    told = forking.submit(told_in_the_midst_of_a_write)
    message, versions = told.result(timeout=60)
    assert versions == [2]
    assert "was forked from it" in message
