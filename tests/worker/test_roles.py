"""Which roles may call which RPC of a worker server."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from stratagem_proto.v1 import status_pb2, worker_pb2
from stratagem_proto.v1.session_pb2 import ROLE_COORDINATOR, ROLE_UNSPECIFIED, FrameSockets, Role
from stratagem_rpc.serving.access import Access, name_of
from stratagem_rpc.serving.handshake import FailedProofs
from stratagem_worker.server import WorkerServer
from tests.conftest import TOKEN
from tests.full import by_values
from tests.roles import WAYS, answer, handshake, request_of

METHODS: list[MethodDescriptor] = [
    *worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].methods,
    *status_pb2.DESCRIPTOR.services_by_name["StatusService"].methods,
]

# Clients share no memory with a worker server.
WORKER_WAYS = [way for way in WAYS if way != "shared memory"]


def status_of(
    worker: WorkerServer,
    way: str,
    method: MethodDescriptor,
    role: Role,
    token: str = TOKEN,
) -> grpc.StatusCode:
    caller, offered = handshake(role), worker._state.frame_sockets
    told = offered.to(caller.session_id) if offered else FrameSockets()
    # Else an address with a wrong token had to wait.
    worker._state.handshakes._failed = FailedProofs()
    request = request_of(method, caller, worker.address, token)
    return answer(way, worker.address, told, method, request)


@by_values("role,way", Role.values(), WORKER_WAYS)
def test_an_rpc_is_refused_for_all_roles_but_those_that_the_contract_lists(
    worker: WorkerServer, way: str, role: Role
) -> None:
    denied = grpc.StatusCode.PERMISSION_DENIED
    answers = {method.name: status_of(worker, way, method, role) for method in METHODS}
    refused = {name for name, status in answers.items() if status is denied}
    assert refused == {each.name for each in METHODS if role not in Access(each).roles}


@pytest.mark.parametrize("way", WORKER_WAYS)
@pytest.mark.parametrize("role", [ROLE_UNSPECIFIED, ROLE_COORDINATOR], ids=name_of)
def test_who_does_not_know_the_token_is_told_no_more_than_that(
    worker: WorkerServer, way: str, role: Role
) -> None:
    answers = {status_of(worker, way, method, role, "guessed") for method in METHODS}
    assert answers == {grpc.StatusCode.UNAUTHENTICATED}
