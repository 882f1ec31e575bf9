"""The status of a parameter server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import (
    DeadlineExceededError,
    UnauthenticatedError,
    VariableNotFoundError,
)
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_proto.v1.session_pb2 import (
    ROLE_WORKER,
    CloseSessionRequest,
    CloseSessionResponse,
    Task,
)
from stratagem_proto.v1.status_pb2 import (
    GetStatusResponse,
    MethodStatus,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient, optimizer_program, status_of


def calls(status: GetStatusResponse, name: str) -> MethodStatus:
    (found,) = (method for method in status.methods if method.method == name)
    return found


def test_only_who_knows_the_secret_is_told(client: RawClient) -> None:
    with (
        RawClient(client.address, "") as stranger,
        pytest.raises(UnauthenticatedError, match=r"no proof.*STRATAGEM_TOKEN_FILE"),
    ):
        status_of(stranger)


def test_calls_are_counted_with_their_outcome_and_the_bytes_of_tensors(
    client: RawClient,
) -> None:
    client.read("dense.weight", "dense.weight")
    with pytest.raises(VariableNotFoundError):
        client.read("dense.wieght")
    read = calls(status_of(client), "Read")
    assert dict(read.ended) == {"OK": 1, "NOT_FOUND": 1}
    assert sum(read.seconds.counts) == 2
    assert 0 < read.seconds.sum < 60
    assert read.sent_bytes.sum == 2 * 6 * 4
    assert not read.HasField("received_bytes")
    created = calls(status_of(client), "CreateVariables").received_bytes
    assert created.sum == 6 * 4 + 300_000 * 4


def test_variables_are_listed_where_that_is_asked_for(client: RawClient) -> None:
    adam = optimizer_program(torch.optim.Adam([torch.empty(0)]))
    client.update(adam, {"dense.weight": torch.ones(2, 3)})
    assert not status_of(client).parameter_server.variables
    listed = status_of(client, with_variables=True).parameter_server.variables
    found = {one.variable.spec.name: one for one in listed}
    assert found["dense.weight"].variable.version == 2
    assert found["dense.weight"].bytes == 24
    slots = [one for one in listed if one.variable.spec.slot_of]
    assert {one.variable.spec.slot_of for one in slots} == {"dense.weight"}


def test_clients_are_listed_until_they_leave(server: ParameterServer) -> None:
    with RawClient(server.address, TOKEN, Task(job="worker", index=3), ROLE_WORKER) as client:
        client.open()
        (session,) = status_of(client).sessions
        assert (session.role, session.task.index) == (ROLE_WORKER, 3)
        assert 0 <= session.silent_seconds < 60
        goodbye = CloseSessionRequest(session_id=client.session_id)
        client.unary("CloseSession", goodbye, CloseSessionResponse)
        assert not status_of(client).sessions


def test_who_waits_is_counted_by_what_for(client: RawClient) -> None:
    barrier = BarrierRequest(
        session_id=client.session_id, name="epoch", num_tasks=2, wait_seconds=60
    )

    def wait() -> None:
        client.unary("Barrier", barrier, BarrierResponse)

    with ThreadPoolExecutor(1) as thread, RawClient(client.address, TOKEN) as other:
        waiting = thread.submit(wait)
        while not status_of(client).parameter_server.waits:
            assert not waiting.done()
        (wait_status,) = status_of(client).parameter_server.waits
        assert (wait_status.reason, wait_status.waiting) == ("barrier", 1)
        assert not wait_status.HasField("seconds")
        other.task = Task(job="worker", index=1)
        other.open()
        barrier_of_other = BarrierRequest()
        barrier_of_other.CopyFrom(barrier)
        barrier_of_other.session_id = other.session_id
        other.unary("Barrier", barrier_of_other, BarrierResponse)
        waiting.result()
    (wait_status,) = status_of(client).parameter_server.waits
    assert wait_status.waiting == 0
    assert sum(wait_status.seconds.counts) == 1


def test_a_wait_that_is_in_vain_counts_too(client: RawClient) -> None:
    alone = BarrierRequest(
        session_id=client.session_id, name="epoch", num_tasks=2, wait_seconds=0.01
    )
    with pytest.raises(DeadlineExceededError):
        client.unary("Barrier", alone, BarrierResponse)
    status = status_of(client)
    assert dict(calls(status, "Barrier").ended) == {"DEADLINE_EXCEEDED": 1}
    assert status.parameter_server.waits[0].seconds.sum >= 0.01


def test_budgets_are_told_with_what_is_used() -> None:
    settings = ServerSettings(token=TOKEN, staged_bytes=1 << 20, variable_bytes=1 << 12)
    with (
        ParameterServer(settings) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        client.create(a=torch.ones(100))
        told = status_of(client).parameter_server
    assert (told.staged.used, told.staged.limit) == (0, 1 << 20)
    assert (told.room.used, told.room.limit) == (400, 1 << 12)
    assert [(one.count, one.bytes) for one in told.totals] == [(1, 400)]


def test_a_server_that_began_with_no_checkpoint_says_so(tmp_path: Path) -> None:
    settings = ServerSettings(token=TOKEN, restore=str(tmp_path))
    with (
        ParameterServer(settings) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        checkpoint = status_of(client).parameter_server.checkpoint
    assert not checkpoint.restored_from
    assert not checkpoint.HasField("age_seconds")
