"""What a server allows to whom, by the certificates that callers show."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc
import pytest
import torch

from stratagem_proto.errors import (
    MalformedStreamError,
    PermissionDeniedError,
    StratagemError,
    UnauthenticatedError,
)
from stratagem_proto.protocol import PROTOCOL_VERSION, SESSION_ID_BYTES
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_COORDINATOR,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    ROLE_OPERATOR,
    ROLE_READER,
    ROLE_SERVER,
    ROLE_WORKER,
    FilteredTask,
    FilteredTasks,
    FrameSockets,
    OpenSessionRequest,
    OpenSessionResponse,
    Role,
    Task,
)
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.asking import SERVICE as STATUS_SERVICE
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import TCP, UNIX
from stratagem_rpc.serving.access import name_of
from stratagem_rpc.sockets.client import SocketLink, endpoints
from tests.certified import Certified, certified, serial
from tests.psserver.wire import RawClient

pytestmark = pytest.mark.unlogged


@pytest.fixture
def authority(tmp_path: Path) -> Certified:
    return certified(tmp_path / "prod")


@pytest.fixture
def server(authority: Certified) -> Iterator[ParameterServer]:
    with ParameterServer(ServerSettings(tls=authority.of("ps:0"))) as running:
        yield running


@contextmanager
def client_of(server: ParameterServer, shown: Path, task: Task, role: Role) -> Iterator[RawClient]:
    with presenting(shown), RawClient(server.address, "", task, role) as client:
        yield client


TASKS = {
    "worker:0=chief": {ROLE_CHIEF, ROLE_COORDINATOR, ROLE_OPERATOR, ROLE_OBSERVER},
    "worker:0=coordinator": {ROLE_CHIEF, ROLE_COORDINATOR, ROLE_OPERATOR, ROLE_OBSERVER},
    "worker:0": {ROLE_WORKER, ROLE_OBSERVER},
    "worker:0=evaluator": {ROLE_EVALUATOR, ROLE_OBSERVER},
    "worker:0=operator": {ROLE_OPERATOR, ROLE_OBSERVER},
    "worker:0=observer": {ROLE_OBSERVER},
    "worker:0=server": {ROLE_SERVER, ROLE_OBSERVER},
    "worker:0=reader": {ROLE_READER, ROLE_OBSERVER},
}


@pytest.mark.parametrize("task", TASKS)
def test_a_process_has_the_role_of_its_certificate_and_no_other(
    server: ParameterServer, authority: Certified, task: str
) -> None:
    shown, allowed = authority.of(task), set()
    for role in cast("list[Role]", Role.values()):
        with client_of(server, shown, Task(job="worker"), role) as client:
            asking = OpenSessionRequest(
                protocol_version=PROTOCOL_VERSION, role=role, task=Task(job="worker")
            )
            request = GetStatusRequest(asking=asking)
            try:
                client.unary("GetStatus", request, GetStatusResponse, service=STATUS_SERVICE)
            except PermissionDeniedError as refusal:
                if "certificate of" in refusal.message:
                    continue
            allowed.add(name_of(role))
    assert allowed == {name_of(role) for role in TASKS[task]}


@pytest.mark.parametrize("task", [Task(job="worker", index=1), Task(job="ps"), Task(job="chief")])
def test_a_process_is_the_task_of_its_certificate_and_no_other(
    server: ParameterServer, authority: Certified, task: Task
) -> None:
    says = r"the certificate of /job:worker/task:0 \(chief\) of the cluster 'prod'"
    shown = authority.of("worker:0=chief")
    with (
        client_of(server, shown, task, ROLE_CHIEF) as client,
        pytest.raises(PermissionDeniedError, match=says),
    ):
        client.open()


def test_a_task_cannot_leave_out_which_one_it_is_to_escape_its_filters(
    server: ParameterServer, authority: Certified
) -> None:
    hidden = FilteredTask(task=Task(job="worker", index=1), device_filters=["/job:ps/task:1"])
    with client_of(server, authority.of("worker:0=chief"), Task(job="worker"), ROLE_CHIEF) as chief:
        run = chief.open().incarnation
        request = OpenSessionRequest(
            protocol_version=PROTOCOL_VERSION,
            session_id=chief.session_id[:SESSION_ID_BYTES],
            role=ROLE_CHIEF,
            task=chief.task,
            incarnation=run,
            filtered=FilteredTasks(tasks=[hidden]),
        )
        chief.unary("OpenSession", request, OpenSessionResponse)
    for task, says in (
        (Task(job="worker", index=1), "is invisible to /job:worker/task:1"),
        (Task(), "was called with no task, and with the certificate of /job:worker/task:1"),
    ):
        with (
            client_of(server, authority.of("worker:1"), task, ROLE_WORKER) as client,
            pytest.raises(PermissionDeniedError, match=says),
        ):
            client.open()


def test_the_id_of_a_session_opens_nothing_to_another_task(
    server: ParameterServer, authority: Certified
) -> None:
    with client_of(
        server, authority.of("worker:0=chief"), Task(job="worker"), ROLE_CHIEF
    ) as client:
        client.open()
        client.create(w=torch.zeros(2))
        stolen = client.session_id
    thief = Task(job="worker", index=1)
    with client_of(server, authority.of("worker:1"), thief, ROLE_WORKER) as client:
        client.open()
        client.session_id = stolen
        with pytest.raises(PermissionDeniedError, match="called with the role chief"):
            client.assign("w", torch.ones(2))
        with pytest.raises(PermissionDeniedError, match="called with the role chief"):
            client.heartbeat()


def greets(server: ParameterServer, told: FrameSockets, shown: Path, way: str) -> bool:
    """Whether a process with these certificates gets in at the server's sockets."""
    with presenting(shown):
        try:
            SocketLink(next(endpoints(told, server.address, way))).close()
        except (OSError, MalformedStreamError):
            return False
    return True


@pytest.mark.parametrize("role", [ROLE_WORKER, ROLE_CHIEF])
def test_the_id_of_a_session_leads_another_task_to_no_socket_of_it(
    server: ParameterServer, authority: Certified, role: Role
) -> None:
    if role == ROLE_WORKER:
        owner, thief = authority.of("worker:0"), authority.of("worker:1")
        tasks = [Task(job="worker", index=0), Task(job="worker", index=1)]
    else:
        # Who leads has sessions of no task, too.
        owner, thief = authority.of("worker:0=chief"), authority.of("worker:1=coordinator")
        tasks = [Task(), Task()]
    with client_of(server, owner, tasks[0], role) as client:
        session, mine = client.session_id, client.open().frame_sockets
    with client_of(server, thief, tasks[1], role) as client:
        own = client.open().frame_sockets
        client.session_id = session
        assert not client.shake_hands().HasField("frame_sockets")
        with pytest.raises(PermissionDeniedError):
            client.open()
    # As if the thief had known the session before its owner opened it.
    stolen = FrameSockets()
    stolen.CopyFrom(own)
    stolen.session_id = mine.session_id
    with client_of(server, owner, tasks[0], role) as client:
        client.session_id = session
        assert client.open().frame_sockets == mine
    for way in UNIX, TCP:
        assert greets(server, mine, owner, way)
        assert greets(server, own, thief, way)
        assert not greets(server, stolen, thief, way)
    assert not greets(server, mine, thief, TCP)


def test_a_process_of_another_cluster_with_the_same_authority_is_refused(
    server: ParameterServer, authority: Certified, tmp_path: Path
) -> None:
    other = Certified(replace(authority.authority, cluster="test"), tmp_path / "other")
    shown = other.of("worker:0=chief")
    files = [(shown / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
    # Else it would refuse the server itself.
    name = ("grpc.ssl_target_name_override", "0.ps.prod.stratagem")
    credentials = grpc.ssl_channel_credentials(*files)
    with client_of(server, shown, Task(job="worker"), ROLE_CHIEF) as client:
        client.channel = grpc.secure_channel(server.address, credentials, [name])
        with pytest.raises(PermissionDeniedError, match="of the cluster 'test'"):
            client.open()


def refused(client: RawClient, says: str) -> None:
    with pytest.raises(UnauthenticatedError, match=says):
        client.heartbeat()


def test_a_certificate_that_has_expired_counts_no_more(
    server: ParameterServer, authority: Certified
) -> None:
    shown = authority.of("worker:0=chief", days=5 / 86_400)
    began = time.time()
    with client_of(server, shown, Task(job="worker"), ROLE_CHIEF) as client:
        client.open()
        client.heartbeat()
        while time.time() < began + 6:
            time.sleep(0.1)
        refused(client, "has expired at")


def test_a_certificate_is_denied_at_once_and_by_its_number_alone(
    server: ParameterServer, authority: Certified
) -> None:
    shown, folder = authority.of("worker:0=chief"), authority.folder / "ps-0"
    task = Task(job="worker")
    with client_of(server, shown, task, ROLE_CHIEF) as client:
        client.open()
        client.heartbeat()
        (folder / "denied.txt").write_text(f"# left in a train\n{serial(shown):x}  # worker:0\n")
        refused(client, "is among the denied ones")
    with (
        client_of(server, shown, task, ROLE_CHIEF) as client,
        pytest.raises(UnauthenticatedError, match="is among the denied ones"),
    ):
        client.open()
    with client_of(server, authority.of("worker:0=chief"), task, ROLE_CHIEF) as client:
        client.open()


def test_a_line_that_is_no_number_is_named(authority: Certified) -> None:
    folder = authority.of("ps:0")
    (folder / "denied.txt").write_text("12ab\nworker:0\n")
    with pytest.raises(StratagemError, match=r"denied\.txt, line 2: 'worker:0' is no serial"):
        ServerSettings(tls=folder)
