"""Cuts that are over, and reports of clients: checked on arrival, dropped with the client."""

from __future__ import annotations

import os

import pytest

from stratagem_proto.errors import AbortedError, InvalidArgumentError
from stratagem_proto.v1 import checkpoint_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.session_pb2 import Task, WorkerReport, WorkerState
from stratagem_psserver.checkpoint_gate import HOLD_SECONDS, CheckpointGate
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient

CHECKPOINTS = "stratagem_proto.v1.CheckpointService"


def report(content: str) -> bytes:
    return WorkerReport(states=[WorkerState(content=content)]).SerializeToString()


def heartbeat(client: RawClient, told: bytes) -> None:
    request = session_pb2.HeartbeatRequest(session_id=client.session_id, finished=1, report=told)
    client.unary("Heartbeat", request, session_pb2.HeartbeatResponse)


def reports(client: RawClient) -> dict[str, bytes]:
    """What a save would find, by clients that are there and that are gone."""
    cut = os.urandom(16)
    hold = pb.HoldStepsRequest(session_id=client.session_id, cut=cut)
    held = client.unary("HoldSteps", hold, pb.HoldStepsResponse, service=CHECKPOINTS)
    release = pb.ReleaseStepsRequest(session_id=client.session_id, cut=cut)
    answer = pb.ReleaseStepsResponse
    client.unary("ReleaseSteps", release, answer, service=CHECKPOINTS)
    return {each.label: each.report for each in (*held.clients, *held.left)}


BAD = {
    "no JSON": report("{"),
    "no object": report("[1]"),
    "no message": b"\xff\xff",
    "too deep": report("[" * 200_000),
    "too long": report('{"a": "' + "x" * (1 << 18) + '"}'),
}


@pytest.mark.parametrize("what", BAD)
def test_a_report_that_no_checkpoint_could_have_is_refused(
    server: ParameterServer, what: str
) -> None:
    with RawClient(server.address, TOKEN) as client:
        client.open()
        heartbeat(client, report('{"data": {"position": 3}}'))
        before = reports(client)
        with pytest.raises(InvalidArgumentError, match="/job:worker/task:0 reports"):
            heartbeat(client, BAD[what])
        assert reports(client) == before


@pytest.mark.parametrize(("task", "kept"), [(Task(), 0), (Task(job="worker"), 1)])
def test_reports_stay_for_tasks_that_may_come_back_alone(
    server: ParameterServer, task: Task, kept: int
) -> None:
    with RawClient(server.address, TOKEN, Task(job="worker", index=9)) as saver:
        saver.open()
        for _ in range(3):
            with RawClient(server.address, TOKEN, task) as client:
                client.open()
                heartbeat(client, report('{"data": {}}'))
                close = session_pb2.CloseSessionRequest(session_id=client.session_id)
                answer = session_pb2.CloseSessionResponse
                client.unary("CloseSession", close, answer)
        assert len(reports(saver)) == kept


@pytest.mark.parametrize("end", ["release", "time"])
def test_a_cut_that_is_over_does_not_begin_again_whatever_came_after_it(end: str) -> None:
    gate, now = CheckpointGate(), 0.0
    cuts = [bytes([number]) * 16 for number in range(3)]
    for cut in cuts:
        gate.hold(cut, {}, now)
        if end == "release":
            gate.release(cut)
        now += HOLD_SECONDS
    for cut in cuts:
        with pytest.raises(AbortedError):
            gate.hold(cut, {}, now)
        assert not gate.holds(cut, now)


def test_a_cut_that_was_released_before_it_was_held_does_not_begin() -> None:
    gate, cut = CheckpointGate(), b"1" * 16
    gate.release(cut)
    with pytest.raises(AbortedError):
        gate.hold(cut, {}, 0.0)
