"""Requests that arrive twice, late, out of order or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch

from stratagem_proto.errors import (
    FailedPreconditionError,
    ResourceExhaustedError,
    VariableNotFoundError,
)
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.checkpoint_pb2 import HoldStepsRequest, HoldStepsResponse
from stratagem_proto.v1.session_pb2 import ROLE_WORKER, RequestKey, Task
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    ASSIGN_MODE_MULTIPLY,
    ASSIGN_MODE_SET,
    AssignHeader,
    Assignment,
    AssignMode,
    AssignResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.exactly_once.mutations import _out_of_turn
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.conftest import TOKEN
from tests.psserver.wire import SERVICE, RawClient, encoded, status_of
from tests.waiting import eventually

pytestmark = pytest.mark.plain_servers_too

COUNT = 30_000  # int64s; enough to be applied beside the event loop
BUDGET = 1 << 20
PATIENCE = 20.0
CHECKPOINTS = "stratagem_proto.v1.CheckpointService"


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    """A session that has created "n", whole numbers, with request 1."""
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(n=torch.zeros(COUNT, dtype=torch.int64))
        yield client


def assignment(
    client: RawClient,
    sequence: int,
    number: int,
    mode: AssignMode = ASSIGN_MODE_ADD,
    acknowledged: int = 0,
    name: str = "n",
) -> list[bytes]:
    """A request that combines a number with each element."""
    value = torch.full((COUNT,), number)
    key = session_pb2.RequestKey(
        session_id=client.session_id, sequence=sequence, acknowledged=acknowledged
    )
    item = Assignment(variable=name, mode=mode, value=0)
    header = AssignHeader(key=key, assignments=[item], tensors=[spec_of(value)])
    return encoded(header, [value])


def send(client: RawClient, messages: list[bytes]) -> list[int]:
    return list(client.upload("Assign", messages, AssignResponse).versions)


def value(client: RawClient) -> int:
    (read,) = client.read("n")
    assert int(read.min()) == int(read.max())
    return int(read[0])


def test_a_repetition_is_answered_and_not_applied(client: RawClient) -> None:
    request = assignment(client, 2, 5)
    assert [send(client, request) for _ in range(3)] == [[2], [2], [2]]
    assert value(client) == 5


def test_arrivals_at_the_same_time_are_applied_once(client: RawClient) -> None:
    requests = [assignment(client, 2 + index // 4, 1) for index in range(40)]
    with ThreadPoolExecutor(8) as threads:
        versions = list(threads.map(lambda each: send(client, each), requests))
    assert value(client) == 10
    assert versions == [[2 + index // 4] for index in range(40)]


def test_requests_are_applied_in_the_order_of_their_numbers(
    client: RawClient,
) -> None:
    """They "are applied in order": 0 + 5 comes before the multiplication by 3."""
    second = assignment(client, 3, 3, ASSIGN_MODE_MULTIPLY)
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(send, client, second)
        assert send(client, assignment(client, 2, 5)) == [2]
        assert early.result(PATIENCE) == [3]
    assert value(client) == 15


def test_a_rejection_is_recorded_like_a_success(client: RawClient, server: ParameterServer) -> None:
    request = assignment(client, 2, 5, name="later")
    with pytest.raises(VariableNotFoundError):
        send(client, request)
    with RawClient(server.address, TOKEN) as other:
        other.open()
        other.create(later=torch.zeros(COUNT, dtype=torch.int64))
    with pytest.raises(VariableNotFoundError):
        send(client, request)


def test_a_number_that_the_client_settled_is_closed(client: RawClient) -> None:
    send(client, assignment(client, 4, 5, acknowledged=3))
    with pytest.raises(FailedPreconditionError, match="will not be applied"):
        send(client, assignment(client, 2, 7))
    assert value(client) == 5


def test_a_closed_session_that_is_opened_again_still_knows_its_requests(
    client: RawClient,
) -> None:
    request = assignment(client, 2, 5)
    send(client, request)
    closing = session_pb2.CloseSessionRequest(session_id=client.session_id)
    client.unary("CloseSession", closing, session_pb2.CloseSessionResponse)
    assert client.open().last_sequence == 2
    send(client, request)
    assert value(client) == 5


class Upload:
    """A request that stays half-sent until its client vanishes."""

    def __init__(self, client: RawClient, messages: list[bytes]) -> None:
        self._rest = threading.Event()
        call: grpc.StreamUnaryMultiCallable[bytes, bytes]
        call = client.channel.stream_unary(f"/{SERVICE}/Assign")
        self._call = call.future(self._frames(messages), timeout=PATIENCE)

    def _frames(self, messages: list[bytes]) -> Iterator[bytes]:
        yield from messages[:-1]
        self._rest.wait(PATIENCE)
        yield messages[-1]

    def vanish(self) -> None:
        self._call.cancel()
        self._rest.set()

    def go_on(self) -> grpc.StatusCode:
        """Sends the rest; returns how the request ended."""
        self._rest.set()
        return self._call.code()


def test_a_client_that_vanishes_frees_its_staging_and_changes_nothing() -> None:
    value = torch.ones(BUDGET // 6)
    with (
        ParameterServer(ServerSettings(staged_bytes=BUDGET)) as server,
        RawClient(server.address, "") as vanishing,
        RawClient(server.address, "") as other,
    ):
        vanishing.open()
        other.open()
        other.create(w=value)
        before = other.everything()
        item = Assignment(variable="w", mode=ASSIGN_MODE_SET, value=0)
        header = AssignHeader(key=vanishing.key(), assignments=[item], tensors=[spec_of(value)])
        messages = encoded(header, [value * 2], chunk_bytes=1 << 16)
        upload = Upload(vanishing, messages)
        eventually(lambda: status_of(other).parameter_server.staged.used > 0)
        key = other.key()
        assert refused(other, key, value)
        upload.vanish()
        # The budget is free again, and what passed its limit may be repeated.
        eventually(lambda: not refused(other, key, value))
        assert other.everything()["w"] == (2, before["w"][1])
        # The vanished request was not applied and may still come.
        vanishing.upload("Assign", messages, AssignResponse)
        assert other.everything()["w"][0] == 3


def refused(client: RawClient, key: session_pb2.RequestKey, value: torch.Tensor) -> bool:
    item = Assignment(variable="w", mode=ASSIGN_MODE_SET, value=0)
    header = AssignHeader(key=key, assignments=[item], tensors=[spec_of(value)])
    try:
        client.upload("Assign", encoded(header, [value]), AssignResponse)
    except ResourceExhaustedError:
        return True
    return False


def test_a_step_of_a_session_that_ended_while_its_data_came_is_not_begun(
    client: RawClient, server: ParameterServer
) -> None:
    value, item = torch.ones(COUNT, dtype=torch.int64), Assignment(variable="n")
    key = client.key()
    key.step = 1
    header = AssignHeader(key=key, assignments=[item], tensors=[spec_of(value)])
    upload = Upload(client, encoded(header, [value], chunk_bytes=1 << 16))
    with RawClient(server.address, TOKEN) as other:
        other.open()
        eventually(lambda: status_of(other).parameter_server.staged.used > 0)
        closing = session_pb2.CloseSessionRequest(session_id=client.session_id)
        other.unary("CloseSession", closing, session_pb2.CloseSessionResponse)
        assert upload.go_on() == grpc.StatusCode.FAILED_PRECONDITION
        hold = HoldStepsRequest(session_id=other.session_id, cut=b"c" * 16)
        held = other.unary("HoldSteps", hold, HoldStepsResponse, service=CHECKPOINTS)
        assert [one.label for one in held.clients if one.begun > one.finished] == []


def test_a_request_that_waits_for_itself_is_not_told_to_send_another_one() -> None:
    session = Session(b"0123456789abcdef", ROLE_WORKER, Task(job="worker"))
    late = RequestKey(sequence=3, acknowledged=1)
    assert "an earlier one that has not arrived" in _out_of_turn(session, late).message
    again = RequestKey(sequence=2, acknowledged=1)
    session.numbering.admit(again)
    assert "come before and is still being applied" in _out_of_turn(session, again).message
