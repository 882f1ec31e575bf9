"""Who may act for a session: its id by itself opens nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import torch
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto.proofs import credential_of
from stratagem_proto.v1 import (
    checkpoint_pb2,
    closure_pb2,
    draws_pb2,
    parameter_server_service_pb2,
    succession_pb2,
)
from stratagem_proto.wire.frames import encode_frame, split
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.wire import SECONDS, RawClient

FILES = (
    parameter_server_service_pb2,
    checkpoint_pb2,
    closure_pb2,
    draws_pb2,
    succession_pb2,
)
METHODS = {
    method.name: method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name != "OpenSession"
}


@pytest.fixture
def owner(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as client:
        client.open()
        client.create(v=torch.zeros(2))
        yield client


def first_message(method: MethodDescriptor, owner: RawClient, session_id: bytes) -> bytes:
    """The smallest request in the name of a session."""
    header = method.input_type.fields_by_name.get("header")
    kind = header.message_type if header else None
    request: Any = GetMessageClass(kind or method.input_type)()
    if hasattr(request, "key"):
        request.key.CopyFrom(owner.key())
        request.key.session_id = session_id
    else:
        request.session_id = session_id
    if not header:
        return bytes(request.SerializeToString())
    (frame,) = split(request, [])
    return encode_frame(frame)


def outcome(owner: RawClient, method: MethodDescriptor, session_id: bytes) -> grpc.StatusCode:
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = owner.channel.stream_stream(path)
    under_way = call(iter([first_message(method, owner, session_id)]), timeout=SECONDS)
    return under_way.code()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_the_id_of_a_session_alone_opens_nothing(
    owner: RawClient, method: MethodDescriptor
) -> None:
    identifier = owner.session_id[:16]
    of_another = credential_of(bytes(16), TOKEN)
    of_another_cluster = credential_of(identifier, "another cluster's secret")
    before = owner.everything()
    for credential in (b"", of_another, of_another_cluster, bytes(16), owner.session_id[16:-1]):
        said = outcome(owner, method, identifier + credential)
        assert said is grpc.StatusCode.PERMISSION_DENIED
    assert owner.everything() == before


def test_a_refusal_says_what_to_do_and_not_the_id(owner: RawClient) -> None:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    call = owner.channel.unary_unary("/stratagem_proto.v1.ParameterServerService/Heartbeat")
    with pytest.raises(grpc.RpcError) as refused:
        call(first_message(METHODS["Heartbeat"], owner, owner.session_id[:16]), timeout=SECONDS)
    said = str(refused.value.details())
    assert "without the credential of that session; its id alone opens nothing" in said
    assert owner.session_id.hex()[:8] not in said
