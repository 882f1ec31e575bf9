"""Calls of every RPC by whoever has some role, over gRPC and over sockets."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto import v1
from stratagem_proto.proofs import credential_of, new_nonce, proof_of_client
from stratagem_proto.protocol import PROTOCOL_VERSION, session_name
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.v1.handshake_pb2 import ChallengeRequest, ChallengeResponse
from stratagem_proto.v1.session_pb2 import FrameSockets, OpenSessionRequest, Role, Task
from stratagem_psserver.exactly_once.sessions import session_of
from stratagem_psserver.server import ParameterServer
from stratagem_rpc.channel import GRPC, TCP, UNIX, open_channel
from stratagem_rpc.proving import CHALLENGE
from stratagem_rpc.serving.access import first_message, handshake_finder
from stratagem_rpc.sockets.client import SocketLink, endpoints
from stratagem_rpc.sockets.frames import FrameKind
from tests.conftest import TOKEN

BESIDES = {"WorkerService", "ReplicationService", "ServersService", "LookupService"}
"""The services that a parameter server by itself does not have."""

SHARED = "shared memory"
WAYS = (GRPC, UNIX, SHARED, TCP)

SECONDS = 60.0


def services() -> Iterator[ServiceDescriptor]:
    """All services of the contract."""
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            found: Any = importlib.import_module(f"{v1.__name__}.{module.name}")
            yield from found.DESCRIPTOR.services_by_name.values()


def begin(server: ParameterServer, caller: OpenSessionRequest) -> None:
    """Opens a session, also for roles that no handshake gets one for."""

    async def opened() -> None:
        name = session_name(caller.session_id)
        server._state.open_session(session_of(caller, name))

    server._loop.run(opened())


def handshake(role: Role) -> OpenSessionRequest:
    """The handshake of a task that says that it has a role."""
    return OpenSessionRequest(
        protocol_version=PROTOCOL_VERSION,
        session_id=os.urandom(16),
        role=role,
        task=Task(job="some", index=1),
    )


def request_of(
    method: MethodDescriptor, caller: OpenSessionRequest, address: str, token: str = TOKEN
) -> bytes:
    """The shortest request that says who calls, by the session of a handshake or by itself.

    What says it by itself proves a token to the server at an address, unless that has none.
    """
    request: Any = GetMessageClass(method.input_type)()
    shown = caller.session_id + credential_of(caller.session_id, TOKEN if token else "")
    first = request.header if "header" in request.DESCRIPTOR.fields_by_name else request
    find = handshake_finder(first_message(method))
    if find is not None:
        find(first).CopyFrom(caller)
        if token:
            _prove(address, method.name, find(first), token)
    elif "key" in first.DESCRIPTOR.fields_by_name:
        first.key.session_id, first.key.sequence = shown, 1
    else:
        first.session_id = shown
    data: bytes = request.SerializeToString()
    return data


def _prove(address: str, method: str, asking: OpenSessionRequest, token: str) -> None:
    nonce = new_nonce()
    request = ChallengeRequest(protocol_version=PROTOCOL_VERSION, nonce=nonce)
    with open_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHALLENGE)
        challenge = ChallengeResponse.FromString(call(request.SerializeToString(), timeout=SECONDS))
    asking.proof.nonce, asking.proof.challenge = nonce, challenge.challenge
    asking.proof.mac = proof_of_client(token, method, asking)


def answer(
    way: str, address: str, told: FrameSockets, method: MethodDescriptor, data: bytes
) -> grpc.StatusCode:
    """The status with which a call ends that has one message."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    if way == GRPC:
        return _by_grpc(address, path, data)
    setting = UNIX if way == SHARED else way
    (endpoint,) = [each for each in endpoints(told, address, setting) if each.way == setting]
    link = SocketLink(endpoint)
    try:
        link.allow(SECONDS)
        assert way != SHARED or link.share(1 << 20)
        link.send(FrameKind.CALL, data, is_last=True, path=path.encode())
        *_, last = link.frames()
    finally:
        link.close()
    if last.kind != FrameKind.STATUS:
        return grpc.StatusCode.OK
    code = RecordedStatus.FromString(bytes(last.message)).code
    return next(each for each in grpc.StatusCode if each.value[0] == code)


def _by_grpc(address: str, path: str, data: bytes) -> grpc.StatusCode:
    with open_channel(address) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        try:
            list(call(iter([data]), timeout=SECONDS))
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK
