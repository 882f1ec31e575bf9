"""Clients that take all that they can get, and others that go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest
import torch

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.v1.barrier_pb2 import BarrierRequest
from stratagem_proto.v1.session_pb2 import AttendSessionRequest, Task
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET, AssignHeader, Assignment
from stratagem_proto.wire.frames import Frame, encode_frame
from stratagem_proto.wire.status import translated
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver import waiting
from stratagem_psserver.exactly_once import ledger
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import SECONDS, SERVICE, RawClient, sgd
from tests.waiting import eventually

BUDGET = 1 << 20
FEW = 50
WORKER = Task(job="worker", index=1)


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with ParameterServer(ServerSettings(token=TOKEN, staged_bytes=BUDGET)) as running:
        yield running


@pytest.fixture
def other(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(w=torch.zeros(1_000))
        yield client


@pytest.fixture
def greedy(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN, WORKER) as client:
        client.open()
        yield client


def refusal(call: Any) -> str:
    """Why a call that has ended was refused."""
    with pytest.raises(ResourceExhaustedError) as caught, translated("the server", "a call"):
        call.result()
    return str(caught.value)


def steps(client: RawClient, number: int = 5) -> None:
    """What a worker does: it pushes, and reads what has come of it."""
    before = client.read("w")[0]
    for _ in range(number):
        client.update(sgd(), {"w": torch.ones(1_000)})
    assert client.read("w")[0].equal(before - number)


@contextmanager
def unfinished(client: RawClient, nbytes: int) -> Iterator[Any]:
    """An upload of which only the header comes."""
    value, ended = torch.zeros(nbytes // 4), threading.Event()
    item = Assignment(variable="w", mode=ASSIGN_MODE_SET, value=0)
    header = AssignHeader(key=client.key(), assignments=[item], tensors=[spec_of(value)])

    def messages() -> Iterator[bytes]:
        yield encode_frame(Frame(header))
        ended.wait(SECONDS)

    sending: Any = client.channel.stream_unary(f"/{SERVICE}/Assign")
    call = sending.future(messages(), timeout=SECONDS)
    try:
        yield call
    finally:
        call.cancel()
        ended.set()


def test_who_uploads_without_end_has_a_share_and_others_go_on(
    server: ParameterServer, other: RawClient, greedy: RawClient
) -> None:
    budget = server._state.budget
    with ExitStack() as held:
        for number in range(1, 4):
            held.enter_context(unfinished(greedy, BUDGET // 4))
            eventually(lambda number=number: budget.used == number * BUDGET // 4)  # type: ignore[misc]
        before = other.everything()
        told = refusal(held.enter_context(unfinished(greedy, BUDGET // 8)))
        assert f"{budget.used} of them by /job:worker/task:1, whose share is {budget.used}" in told
        assert "start the server with a larger --staged-bytes" in told
        assert other.everything() == before
        steps(other)
    eventually(lambda: budget.used == 0)
    # None of it was applied.
    with RawClient(server.address, TOKEN, WORKER) as again:
        again.open()
        again.assign("w", torch.ones(1_000))
    assert other.read("w")[0].eq(1).all()


def barrier(client: RawClient) -> bytes:
    """A wait for somebody who does not come."""
    request = BarrierRequest(
        session_id=client.session_id, name="nobody-comes", num_tasks=2, wait_seconds=SECONDS
    )
    return request.SerializeToString()


def attending(client: RawClient) -> bytes:
    return AttendSessionRequest(session_id=client.session_id).SerializeToString()


@pytest.mark.parametrize(
    ("method", "request_of", "says"),
    [
        ("Barrier", barrier, f"{FEW} requests of /job:worker/task:1 wait"),
        ("AttendSession", attending, f"{FEW} calls attend session"),
    ],
)
def test_who_waits_without_end_has_a_share_and_others_go_on(
    other: RawClient,
    greedy: RawClient,
    method: str,
    request_of: Callable[[RawClient], bytes],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", FEW)
    monkeypatch.setattr(ledger, "MAX_ATTENDING", FEW)
    before = other.everything()
    begin: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    begin = greedy.channel.unary_unary(f"/{SERVICE}/{method}")
    calls = [begin.future(request_of(greedy), timeout=SECONDS) for _ in range(FEW + 1)]
    try:
        eventually(lambda: any(call.done() for call in calls))
        (refused,) = [call for call in calls if call.done()]
        assert says in refusal(refused)
        assert other.everything() == before
        steps(other)
    finally:
        for call in calls:
            call.cancel()
