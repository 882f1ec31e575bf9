"""What the log of a server tells of who has called it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import torch

from stratagem_proto.errors import PermissionDeniedError, StratagemError, UnauthenticatedError
from stratagem_proto.protocol import PROTOCOL_VERSION
from stratagem_proto.v1 import checkpoint_pb2, consistency_pb2, servers_pb2
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    OpenSessionRequest,
    Task,
)
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_proto.v1.variable_requests_pb2 import (
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
from stratagem_psserver.server import ParameterServer
from stratagem_rpc import server_log
from stratagem_rpc.asking import SERVICE as STATUS_SERVICE
from tests.conftest import TOKEN
from tests.psserver.moves.servers import movable
from tests.psserver.wire import SERVICE, RawClient
from tests.roles import handshake
from tests.waiting import eventually

CHECKPOINTS = "stratagem_proto.v1.CheckpointService"
MANY = 500
FORGED = '"}\n2026-11-26T12:00:00Z [info     ] carried out  caller=/job:chief/task:0\r\x1b[2K\u2028'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log as JSON."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    server_log.to_stderr()
    yield written


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log on a terminal."""
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("NO_COLOR", "1")
    server_log.to_stderr()
    yield written


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    """What the log tells of calls."""
    found = [json.loads(line) for line in log.getvalue().splitlines()]
    return [each for each in found if "rpc" in each]


def told(log: io.StringIO) -> list[tuple[str, str, Any]]:
    """Of the chief of a test: the event, the RPC and what it was about."""
    found = lines(log)
    assert {(each["caller"], each["role"]) for each in found} == {("/job:chief/task:0", "chief")}
    return [(each["event"], each["rpc"], each["about"]) for each in found]


def chief(server: ParameterServer) -> RawClient:
    return RawClient(server.address, TOKEN, Task(job="chief"), ROLE_CHIEF)


def test_the_log_tells_who_creates_and_deletes_what(
    log: io.StringIO, server: ParameterServer
) -> None:
    with chief(server) as client:
        client.open()
        client.create(a=torch.full((2,), 1234567.0), b=torch.ones(3))
        client.assign("a", torch.zeros(2))
        client.read("a")
        request = DeleteVariablesRequest(key=client.key(), names=["b"])
        client.unary("DeleteVariables", request, DeleteVariablesResponse)
    assert told(log) == [
        ("carried out", "CreateVariables", {"variables.name": ["a", "b"]}),
        ("carried out", "DeleteVariables", {"names": ["b"]}),
    ]
    assert "1234567" not in log.getvalue()
    assert TOKEN not in log.getvalue()


def test_the_log_tells_who_changes_the_consistency(
    log: io.StringIO, server: ParameterServer
) -> None:
    pb = consistency_pb2
    with chief(server) as client:
        client.open()
        declared = pb.Consistency(mode=pb.CONSISTENCY_MODE_ASYNC)
        begins = [pb.StepBegin(group="SGD", num_workers=1, declared=declared)]
        client.unary(
            "BeginStep",
            pb.BeginStepRequest(session_id=client.session_id, steps=begins),
            pb.BeginStepResponse,
        )
        change = pb.SetConsistencyRequest(
            key=client.key(),
            group="SGD",
            consistency=pb.Consistency(mode=pb.CONSISTENCY_MODE_BOUNDED, bound=2),
        )
        client.unary("SetConsistency", change, pb.SetConsistencyResponse)
    about = {"group": "SGD", "consistency.mode": "CONSISTENCY_MODE_BOUNDED"}
    assert told(log) == [("carried out", "SetConsistency", about)]


def test_the_log_tells_who_wanted_to_save_and_to_restore_and_why_that_failed(
    log: io.StringIO, server: ParameterServer
) -> None:
    pb = checkpoint_pb2
    with chief(server) as client:
        client.open()
        save = pb.BeginSaveRequest(session_id=client.session_id, folder="/no/such")
        stage = pb.StageVariablesRequest(session_id=client.session_id, path="/no/checkpoint")
        with pytest.raises(StratagemError):
            client.unary("BeginSave", save, pb.BeginSaveResponse, service=CHECKPOINTS)
        with pytest.raises(StratagemError):
            client.unary("StageVariables", stage, pb.StageVariablesResponse, service=CHECKPOINTS)
        restore = pb.RestoreVariablesRequest(key=client.key(), identity="step 7")
        client.unary("RestoreVariables", restore, pb.RestoreVariablesResponse, service=CHECKPOINTS)
    assert told(log) == [
        ("refused", "BeginSave", {"folder": "/no/such", "base": ""}),
        ("refused", "StageVariables", {"path": "/no/checkpoint", "variables": []}),
        ("carried out", "RestoreVariables", {"identity": "step 7"}),
    ]


def test_the_log_tells_who_drains_a_server(log: io.StringIO, tmp_path: Any) -> None:
    with movable(tmp_path, count=1) as servers:
        asking = handshake(ROLE_CHIEF)
        request = servers_pb2.SetDrainingRequest(asking=asking, draining=True)
        servers.call(0, "SetDraining", request, servers_pb2.SetDrainingResponse)
    (line,) = [each for each in lines(log) if each["rpc"] == "SetDraining"]
    assert (line["event"], line["caller"], line["role"], line["about"]) == (
        "carried out",
        "/job:some/task:1",
        "chief",
        {"draining": True},
    )


def test_the_log_tells_who_was_refused_because_of_a_role(
    log: io.StringIO, server: ParameterServer
) -> None:
    with RawClient(server.address, TOKEN, Task(job="evaluator"), ROLE_EVALUATOR) as client:
        client.open()
        request = DeleteVariablesRequest(key=client.key(), names=["users.weight"])
        with pytest.raises(PermissionDeniedError):
            client.unary("DeleteVariables", request, DeleteVariablesResponse)
    (line,) = lines(log)
    assert line["event"] == "refused"
    assert line["error"] == "PermissionDeniedError"
    assert (line["caller"], line["role"]) == ("/job:evaluator/task:0", "evaluator")
    assert (line["rpc"], line["about"]) == ("DeleteVariables", {"names": ["users.weight"]})
    assert line["task"] == "/job:ps/task:0"


def test_the_log_believes_nothing_that_a_stranger_says_of_itself(
    log: io.StringIO, server: ParameterServer
) -> None:
    stranger = RawClient(server.address, "", Task(job="chief"), ROLE_CHIEF)
    with stranger, pytest.raises(UnauthenticatedError):
        stranger.open()
    (line,) = lines(log)
    assert (line["event"], line["rpc"]) == ("refused", "OpenSession")
    assert not {"caller", "role"} & line.keys()


@pytest.mark.full("lines of strangers are bounded in tests/rpc/test_line_budget.py")
def test_strangers_do_not_fill_the_log(log: io.StringIO, server: ParameterServer) -> None:
    with RawClient(server.address, "", Task(job="chief"), ROLE_CHIEF) as stranger:
        for _ in range(MANY):
            with pytest.raises(PermissionDeniedError, match="without the credential"):
                stranger.heartbeat()
    refused = lines(log)
    assert all(line["event"] == "refused" for line in refused)
    assert 100 <= len(refused) < MANY
    # As after a second, for whoever comes next.
    server_log.OF_STRANGERS._seen -= 1.0
    with chief(server) as client:
        client.open()
        client.create(a=torch.ones(2))
    assert lines(log)[-1]["event"] == "carried out"
    with RawClient(server.address, "") as stranger, pytest.raises(UnauthenticatedError):
        stranger.open()
    left_out = sum(line.get("left_out", 0) for line in lines(log))
    assert len([line for line in lines(log) if line["event"] == "refused"]) + left_out == MANY + 1


def test_a_change_that_its_caller_breaks_off_is_told_of(
    log: io.StringIO, server: ParameterServer
) -> None:
    with chief(server) as client:
        client.open()
        client.create(a=torch.ones(2))
        request = DeleteVariablesRequest(key=client.key(), names=["a"])
        # It waits for a request before it that never comes.
        request.key.sequence, request.key.acknowledged = 9, 1
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = client.channel.unary_unary(f"/{SERVICE}/DeleteVariables")
        deleting = call.future(request.SerializeToString())
        begun = server._state.figures.calls("DeleteVariablesRequest")
        eventually(lambda: begun._in_progress == 1)
        deleting.cancel()
        eventually(lambda: begun._in_progress == 0)
    assert told(log)[-1] == ("broken off", "DeleteVariables", {"names": ["a"]})


def forge(server: ParameterServer) -> None:
    """Sends names that look like the end of a line and another one behind it; four are refused."""
    asking = OpenSessionRequest(protocol_version=PROTOCOL_VERSION)
    asking.task.job = FORGED
    with chief(server) as client:
        client.open()
        delete = DeleteVariablesRequest(key=client.key(), names=[FORGED])
        with pytest.raises(StratagemError):
            client.unary("DeleteVariables", delete, DeleteVariablesResponse)
        with pytest.raises(StratagemError):
            client.create(**{FORGED: torch.ones(1)})
        with pytest.raises(PermissionDeniedError):
            client.prove("GetStatus", asking)
            status = GetStatusRequest(asking=asking)
            client.unary("GetStatus", status, GetStatusResponse, service=STATUS_SERVICE)
    nobody = RawClient(server.address, TOKEN, Task(job=FORGED), ROLE_OBSERVER)
    with nobody, pytest.raises(PermissionDeniedError):
        nobody.open()


def test_no_name_forges_a_line_of_the_log(log: io.StringIO, server: ParameterServer) -> None:
    forge(server)
    assert [each["event"] for each in lines(log)] == ["refused"] * 4
    assert log.getvalue().isascii()


def test_no_name_forges_a_line_on_a_terminal(
    terminal: io.StringIO, server: ParameterServer
) -> None:
    forge(server)
    found = [line for line in terminal.getvalue().split("\n") if "rpc=" in line]
    assert len(found) == 4
    assert all("] refused " in line and line.isprintable() for line in found)
    written = terminal.getvalue().replace("\n", "")
    assert written.isprintable()
