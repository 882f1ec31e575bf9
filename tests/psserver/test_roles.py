"""Which roles may call which RPC of a parameter server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import grpc
import pytest
import torch
from google.protobuf.descriptor import MethodDescriptor

from stratagem_proto.errors import PermissionDeniedError, SessionLostError
from stratagem_proto.proofs import credential_of
from stratagem_proto.protocol import session_name
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.consistency_pb2 import StepBegin
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    ROLE_UNSPECIFIED,
    ROLE_WORKER,
    CloseSessionRequest,
    CloseSessionResponse,
    FrameSockets,
    OpenSessionRequest,
    Role,
    Task,
)
from stratagem_proto.v1.variable_requests_pb2 import (
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.access import Access, first_message, handshake_finder
from stratagem_rpc.serving.handshake import FailedProofs
from tests.conftest import TOKEN
from tests.full import by_values
from tests.psserver.wire import RawClient
from tests.roles import WAYS, answer, begin, handshake, request_of, services
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

ELSEWHERE = {"WorkerService", "LookupService"}
DENIED = grpc.StatusCode.PERMISSION_DENIED

Servers = Mapping[str, ParameterServer]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A server that has each of the services, by its name."""
    arbiter = f"file:{tmp_path_factory.mktemp('arbiter') / 'register'}"
    with ExitStack() as stack:
        plain, movable = (
            stack.enter_context(ParameterServer(settings))
            for settings in (
                ServerSettings(token=TOKEN),
                ServerSettings(token=TOKEN, arbiter=arbiter),
            )
        )
        others = {"ServersService": movable, "ReplicationService": movable}
        eventually(lambda: movable.replicated.is_serving)
        yield {each.name: others.get(each.name, plain) for each in services()}


def methods() -> list[MethodDescriptor]:
    """All RPCs of parameter servers that are not for everybody."""
    found = (method for each in services() if each.name not in ELSEWHERE for method in each.methods)
    return [method for method in found if not Access(method).for_anyone]


def status_of(
    server: ParameterServer,
    way: str,
    method: MethodDescriptor,
    caller: OpenSessionRequest,
    token: str = TOKEN,
) -> grpc.StatusCode:
    """The status of a call, by a session or a handshake of the caller."""
    if handshake_finder(first_message(method)) is None:
        begin(server, caller)
    offered = server._state.frame_sockets
    told = offered.to(caller.session_id) if offered else FrameSockets()
    request = request_of(method, caller, server.address, token)
    ask = partial(answer, way, server.address, told, method, request)
    return _attended(server, ask, caller) if method.name == "AttendSession" else ask()


def _attended(
    server: ParameterServer, ask: partial[grpc.StatusCode], caller: OpenSessionRequest
) -> grpc.StatusCode:
    """The status of a call that lasts as long as the session of a caller, which is ended."""
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask)
        attended = server._state.ledger._attended
        eventually(lambda: asking.done() or attended[session_name(caller.session_id)] > 0)
        if not asking.done():
            with RawClient(server.address, TOKEN) as client:
                shown = caller.session_id + credential_of(caller.session_id, TOKEN)
                request = CloseSessionRequest(session_id=shown)
                client.unary("CloseSession", request, CloseSessionResponse)
        return asking.result()


@by_values("role,way", Role.values(), WAYS)
def test_an_rpc_is_refused_for_all_roles_but_those_that_the_contract_lists(
    servers: Servers, way: str, role: Role
) -> None:
    wrong = {}
    for method in methods():
        server = servers[method.containing_service.name]
        status = status_of(server, way, method, handshake(role))
        if (status is DENIED) is (role in Access(method).roles):
            wrong[method.name] = status
    assert not wrong


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_know_the_token_is_told_no_more_than_that(servers: Servers, way: str) -> None:
    wrong = {}
    for method in methods():
        if handshake_finder(first_message(method)) is None:
            continue
        server = servers[method.containing_service.name]
        # Else its address had to wait.
        server._state.handshakes._failed = FailedProofs()
        status = status_of(server, way, method, handshake(ROLE_UNSPECIFIED), "guessed")
        if status is not grpc.StatusCode.UNAUTHENTICATED:
            wrong[method.name] = status
    assert not wrong


def test_without_a_session_nothing_is_done(servers: Servers) -> None:
    answers = {}
    for method in methods():
        if handshake_finder(first_message(method)) is None:
            server, told = servers[method.containing_service.name], FrameSockets()
            data = request_of(method, handshake(ROLE_CHIEF), server.address)
            answers[method.name] = answer("grpc", server.address, told, method, data)
    # What is over anyhow may be closed again.
    assert answers.pop("CloseSession") is grpc.StatusCode.OK
    assert set(answers.values()) == {grpc.StatusCode.FAILED_PRECONDITION}


def test_an_error_names_the_rpc_the_task_its_role_and_those_that_may(
    server: ParameterServer,
) -> None:
    task = Task(job="evaluator", index=2)
    with (
        RawClient(server.address, TOKEN, task, ROLE_EVALUATOR) as client,
        pytest.raises(PermissionDeniedError) as refused,
    ):
        client.open()
        request = DeleteVariablesRequest(key=client.key(), names=["dense.weight"])
        client.unary("DeleteVariables", request, DeleteVariablesResponse)
    assert refused.value.task == "/job:ps/task:0"
    assert refused.value.message == (
        "DeleteVariables is not for /job:evaluator/task:2, which has the role evaluator; roles "
        "that may call it: chief, coordinator. Do this in a program that has such a role, or "
        "correct the task of this one, in TF_CONFIG or its resolver"
    )


def test_who_was_refused_goes_on_with_what_its_role_may(client: RawClient) -> None:
    with RawClient(client.address, TOKEN, Task(job="worker", index=1), ROLE_WORKER) as worker:
        worker.open()
        for value in (2.0, 3.0):
            request = DeleteVariablesRequest(key=worker.key(), names=["dense.weight"])
            with pytest.raises(PermissionDeniedError):
                worker.unary("DeleteVariables", request, DeleteVariablesResponse)
            with pytest.raises(PermissionDeniedError):
                worker.create(another=torch.ones(1))
            worker.assign("dense.weight", torch.full((2, 3), value))
        (read,) = worker.read("dense.weight")
    assert read.eq(3.0).all()
    assert "another" not in client.listing()


def test_a_session_keeps_its_role_and_its_task(server: ParameterServer) -> None:
    others = [(Task(job="worker"), ROLE_CHIEF), (Task(job="worker", index=1), ROLE_WORKER)]
    with RawClient(server.address, TOKEN, Task(job="worker"), ROLE_WORKER) as client:
        run = client.open().incarnation
        for _ in range(2):
            for task, role in others:
                with RawClient(server.address, TOKEN, task, role) as other:
                    other.session_id = client.session_id
                    with pytest.raises(PermissionDeniedError, match="is its own for ever"):
                        other.shake_hands(run)
            assert client.shake_hands(run).incarnation == run
            client.heartbeat()
            # Nor when it has ended.
            request = CloseSessionRequest(session_id=client.session_id)
            client.unary("CloseSession", request, CloseSessionResponse)


def test_a_role_that_may_open_no_session_has_none(server: ParameterServer) -> None:
    with RawClient(server.address, TOKEN, role=ROLE_OBSERVER) as client:
        with pytest.raises(PermissionDeniedError, match="OpenSession is not for"):
            client.open()
        with pytest.raises(SessionLostError):
            client.heartbeat()


def test_a_read_begins_no_step_for_an_evaluator(server: ParameterServer) -> None:
    begins = [StepBegin(group="sgd", worker=0, num_workers=1)]
    with RawClient(server.address, TOKEN, role=ROLE_EVALUATOR) as client:
        client.open()
        client.select(pb.ReadRequest())
        with pytest.raises(PermissionDeniedError, match="BeginStep is not for"):
            client.select(pb.ReadRequest(begins=begins))
