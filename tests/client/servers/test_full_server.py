"""Requests to a server whose byte budget is in use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.requests.reads import Reading, read
from stratagem_proto.errors import (
    ResourceExhaustedError,
)
from stratagem_proto.v1.variable_requests_pb2 import AssignHeader, AssignRequest
from stratagem_proto.wire.status import translated
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.channel import Deadlines, open_channel
from tests.client.connections import add, connected, make, value_of
from tests.conftest import TOKEN
from tests.faults import FaultyProxy
from tests.rpc_methods import parameter_server_method
from tests.waiting import eventually

SMALL_BUDGET = ServerSettings(token=TOKEN, staged_bytes=1100)


@contextmanager
def budget_in_use(address: str) -> Iterator[None]:
    """Lets a request that never ends occupy 800 bytes of a server's budget."""
    ended = threading.Event()

    def endless(connection: Connection) -> Iterator[AssignRequest]:
        specs = [spec_of(torch.zeros(100, dtype=torch.int64))]
        key = connection.open().next_key(CheckpointSteps())
        yield AssignRequest(header=AssignHeader(key=key, tensors=specs))
        ended.wait(60)

    with connected(address) as connection, open_channel(address) as channel:
        assign = parameter_server_method(channel, "Assign")
        into = torch.zeros(50, dtype=torch.int64)
        calls = [assign.future(endless(connection))]

        def is_full() -> bool:
            # The question may itself have been what left it no room.
            if calls[-1].done():
                calls.append(assign.future(endless(connection)))
            return _is_refused(connection, Reading("v", into))

        try:
            eventually(is_full)
            yield
        finally:
            ended.set()
            calls[-1].cancel()


def _is_refused(connection: Connection, reading: Reading) -> bool:
    request = read([reading])
    request.stamp(connection.open().key(CheckpointSteps()))
    try:
        with translated(connection.peer, "Read"):
            request.receive(connection.route.attempt(request, Deadlines()).responses)
    except ResourceExhaustedError:
        return True
    return False


def test_a_write_that_finds_the_server_full_is_repeated_until_there_is_room() -> None:
    ones = torch.ones(50, dtype=torch.int64)
    with (
        ParameterServer(SMALL_BUDGET) as server,
        FaultyProxy(server.address) as proxy,
        connected(proxy.address) as connection,
        ThreadPoolExecutor(1) as thread,
    ):
        make(connection, "v", torch.zeros_like(ones))
        with budget_in_use(server.address):
            before = proxy.frames
            writing = thread.submit(add, connection, "v", ones)
            # Two attempts of four frames each.
            eventually(lambda: proxy.frames >= before + 8)
            assert not writing.done()
        assert writing.result(30) == 2
        assert torch.equal(value_of(connection, "v", ones), ones)


def test_a_server_that_stays_full_is_reported_in_the_end() -> None:
    ones = torch.ones(50, dtype=torch.int64)
    with (
        ParameterServer(SMALL_BUDGET) as server,
        connected(server.address, connect=0.3) as connection,
    ):
        make(connection, "v", torch.zeros_like(ones))
        with (
            budget_in_use(server.address),
            pytest.raises(ResourceExhaustedError, match=r"tried for 0\.3 s") as caught,
        ):
            add(connection, "v", ones)
        assert f"Assign on /job:ps/task:0 at {server.address}" in str(caught.value)
        assert add(connection, "v", ones) == 2


class Pauses(threading.Event):
    """Notes how long is waited for it, and spends less."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return super().wait(0.01)


def test_a_request_is_not_repeated_before_the_server_wants_it() -> None:
    ones = torch.ones(50, dtype=torch.int64)
    with (
        ParameterServer(SMALL_BUDGET) as server,
        connected(server.address, connect=0.2) as connection,
    ):
        make(connection, "v", torch.zeros_like(ones))
        connection.route.closed = pauses = Pauses()
        with (
            budget_in_use(server.address),
            pytest.raises(ResourceExhaustedError) as caught,
        ):
            add(connection, "v", ones)
        assert 0.1 < caught.value.retry_seconds <= min(pauses.seconds)


def test_a_request_larger_than_the_budget_is_refused_at_once() -> None:
    with (
        ParameterServer(SMALL_BUDGET) as server,
        connected(server.address, connect=60) as connection,
        pytest.raises(ResourceExhaustedError, match="--staged-bytes") as caught,
    ):
        make(connection, "v", torch.zeros(1000))
    assert "tried for" not in str(caught.value)
