"""Whom a worker server serves."""

from __future__ import annotations

from typing import Any

import pytest

from stratagem._ps_client.session import Identity, handshake
from stratagem._worker_client import link as links
from stratagem._worker_client.link import WorkerLink, this_runtime
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MalformedStreamError,
    StratagemError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, ROLE_WORKER, OpenSessionRequest, Task
from stratagem_proto.wire.status import translated
from stratagem_rpc.channel import Deadlines, open_channel
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.rpc_methods import worker_method
from tests.worker.links import (
    PATIENCE,
    connected,
    link_to,
    opening,
)

PATH = b"/stratagem_proto.v1.WorkerService/Work"


@pytest.mark.parametrize("token", ["", "a guess by somebody"])
def test_without_the_token_no_function_runs(worker: WorkerServer, token: str) -> None:
    with pytest.raises(UnauthenticatedError, match="/job:worker/task:0"):
        link_to(worker.address, token=token).connect()


def test_without_the_token_nobody_gets_a_result_by_the_id_of_its_session(
    worker: WorkerServer,
) -> None:
    with connected(worker) as link, open_channel(worker.address) as channel:
        asking = handshake(Identity(ROLE_WORKER), link.incarnation)
        copying = worker_method(channel, "Copy")(pb.CopyRequest(asking=asking), timeout=PATIENCE)
        with pytest.raises(UnauthenticatedError), translated("the worker", "Copy"):
            list(copying)


def test_a_worker_without_a_token_serves_nobody() -> None:
    with pytest.raises(InvalidArgumentError, match="--token-file"):
        WorkerSettings()


@pytest.mark.parametrize("field", ["python", "torch", "cloudpickle", "stratagem"])
def test_a_client_with_another_version_is_told_both(
    worker: WorkerServer, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = this_runtime()
    other = this_runtime()
    setattr(other, field, "0.0")
    monkeypatch.setattr(links, "this_runtime", lambda: other)
    with pytest.raises(FailedPreconditionError) as caught:
        link_to(worker.address).connect()
    assert f"{field} 0.0" in str(caught.value)
    assert getattr(here, field) in str(caught.value)


def test_another_task_at_the_address_is_named(worker: WorkerServer) -> None:
    with pytest.raises(FailedPreconditionError, match="/job:worker/task:0 answers"):
        link_to(worker.address, task=1).connect()


def test_a_worker_that_is_not_there_is_unavailable() -> None:
    with WorkerServer(WorkerSettings(token=TOKEN)) as gone:
        address = gone.address
    identity, deadlines = Identity(ROLE_COORDINATOR), Deadlines(connect=0.1)
    link = WorkerLink(address, Task(job="worker"), identity, deadlines)
    with pytest.raises(UnavailableError, match=f"at {address} did not answer"):
        link.connect()


# More than is decoded for somebody who has not proved anything.
LONG = pb.OpenWorkerSession(session=OpenSessionRequest(client=bytes(5 << 20)))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (pb.WorkRequest(), MalformedStreamError),
        (pb.WorkRequest(instructions=[pb.Instruction()]), MalformedStreamError),
        (pb.WorkRequest(open=LONG), InvalidArgumentError),
    ],
)
def test_a_call_begins_with_a_handshake(
    worker: WorkerServer, request_: pb.WorkRequest, error: type[StratagemError]
) -> None:
    with open_channel(worker.address) as channel, pytest.raises(error):
        exchange(channel, request_)


def test_an_unknown_instruction_ends_the_session(worker: WorkerServer) -> None:
    with open_channel(worker.address) as channel, pytest.raises(InvalidArgumentError):
        exchange(channel, opening(worker), pb.WorkRequest(instructions=[pb.Instruction()]))


def exchange(channel: Any, *requests: pb.WorkRequest) -> None:
    with translated("the worker", "Work"):
        list(worker_method(channel, "Work")(iter(requests), timeout=PATIENCE))
