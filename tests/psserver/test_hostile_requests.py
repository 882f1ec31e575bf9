"""Requests of somebody who belongs to the cluster, and does not mean well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from stratagem_proto.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    SessionLostError,
    StratagemError,
)
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, OpenSessionResponse
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import (
    AssignHeader,
    Assignment,
    AssignResponse,
    CreateVariablesHeader,
    CreateVariablesResponse,
)
from stratagem_proto.wire.frames import Frame, encode_frame, encode_header, split
from stratagem_psserver.checkpoints import facts_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_rpc.serving.access import first_message
from tests.conftest import TOKEN
from tests.psserver.wire import SECONDS, RawClient
from tests.roles import BESIDES, services
from tests.trap import unsprung

# One waits until the session ends, the other holds all steps back, whatever its bytes are.
_LEFT_OUT = {"AttendSession", "HoldSteps"}

METHODS = {
    method.name: method
    for service in services()
    if service.name not in BESIDES
    for method in service.methods
    if method.name not in _LEFT_OUT
}


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that nobody may load."""
    with unsprung(tmp_path) as found:
        yield found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ParameterServer]:
    """One that writes checkpoints to no folder that a request could name by accident."""
    with ParameterServer(ServerSettings(token=TOKEN, checkpoint_root=str(tmp_path))) as running:
        yield running


@pytest.fixture
def client(server: ParameterServer) -> Iterator[RawClient]:
    with RawClient(server.address, TOKEN) as opened:
        opened.open()
        opened.create(w=torch.ones(3))
        yield opened


def paths_of(
    kind: Descriptor, above: tuple[Descriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Where a message has bytes, or messages with bytes that are not in themselves again."""
    for field in kind.fields:
        inner = field.message_type
        if field.type == FieldDescriptor.TYPE_BYTES:
            yield (field,)
        elif inner is not None and not inner.GetOptions().map_entry and inner not in above:
            for path in paths_of(inner, (inner, *above)):
                yield (field, *path)


def put(message: Any, path: tuple[FieldDescriptor, ...], data: bytes) -> None:
    """Writes bytes where a path leads."""
    field, *rest = path
    place = getattr(message, field.name)
    if not rest:
        if hasattr(place, "append"):
            place.append(data)
        else:
            setattr(message, field.name, data)
        return
    inner = place.add() if hasattr(place, "add") else place
    inner.SetInParent()
    put(inner, tuple(rest), data)


def first_type(method: MethodDescriptor) -> type[Any]:
    """The class of the request of an RPC, or of its header."""
    return GetMessageClass(first_message(method))


def signed(client: RawClient, request: Any) -> None:
    """Puts the session into a request that has a place for one."""
    if "key" in request.DESCRIPTOR.fields_by_name:
        request.key.session_id = client.session_id
        request.key.sequence = client.sequence + 1
        request.key.acknowledged = client.sequence
    elif "session_id" in request.DESCRIPTOR.fields_by_name:
        request.session_id = client.session_id


def ended(client: RawClient, method: MethodDescriptor, request: Message) -> grpc.StatusCode:
    """How a call ends that begins with a request, or its header."""
    streams = "header" in method.input_type.fields_by_name
    data = [encode_frame(one) for one in split(request, [])] if streams else None
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = client.channel.stream_stream(path)
    under_way = call(iter(data or [request.SerializeToString()]), timeout=SECONDS)
    with suppress(grpc.RpcError):
        _ = list(under_way)
    return under_way.code()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_no_pickle_is_loaded_in_whichever_field_it_comes(
    server: ParameterServer, client: RawClient, trap: bytes, method: MethodDescriptor
) -> None:
    before = client.everything()
    for path in paths_of(first_type(method).DESCRIPTOR):
        request: Any = first_type(method)()
        if path[-1].name != "session_id":
            signed(client, request)
        put(request, path, trap)
        ended(client, method, request)
    # A request that was refused for good has its number.
    client.sequence = server._state.known(client.session_id).numbering.last  # type: ignore[union-attr]
    assert client.everything() == before
    client.assign("w", torch.ones(3))
    facts_of(server._state)


def described(shape: list[int]) -> TensorSpec:
    return TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=shape)


def assigned(client: RawClient, spec: TensorSpec) -> None:
    header = AssignHeader(key=client.key(), tensors=[spec])
    client.upload("Assign", [encode_frame(Frame(header))], AssignResponse)


def created(client: RawClient, spec: TensorSpec) -> None:
    variable = VariableSpec(name="huge", tensor=spec, kind=VARIABLE_KIND_MODEL)
    header = CreateVariablesHeader(key=client.key(), variables=[variable])
    client.upload("CreateVariables", [encode_frame(Frame(header))], CreateVariablesResponse)


def made(client: RawClient, spec: TensorSpec) -> None:
    """A variable whose value the server would make itself."""
    variable = VariableSpec(name="huge", tensor=spec, kind=VARIABLE_KIND_MODEL)
    variable.initializer.constant = 1.0
    header = CreateVariablesHeader(key=client.key(), variables=[variable])
    client.upload("CreateVariables", [encode_frame(Frame(header))], CreateVariablesResponse)


@pytest.mark.parametrize("shape", [[1 << 60], [1 << 30, 1 << 30], [1 << 62, 4]], ids=str)
@pytest.mark.parametrize("send", [assigned, created, made])
def test_elements_without_end_are_refused_before_memory_is_taken(
    client: RawClient, send: Callable[[RawClient, TensorSpec], None], shape: list[int]
) -> None:
    before = client.everything()
    with pytest.raises((InvalidArgumentError, ResourceExhaustedError)):
        send(client, described(shape))
    assert client.everything() == before


HUGE = 32 << 20


def long_header(session_id: bytes) -> bytes:
    """A header of 32 MiB, of a name that nobody gives."""
    header = AssignHeader(assignments=[Assignment(variable="n" * (HUGE - 100))])
    header.key.session_id, header.key.sequence = session_id, 2
    return header.SerializeToString()


@pytest.mark.parametrize("session_id", [b"", bytes(32)], ids=["none", "another"])
def test_a_long_header_of_no_session_is_refused_before_it_is_decoded(
    client: RawClient, session_id: bytes
) -> None:
    before = client.everything()
    message = encode_header(long_header(session_id))
    with pytest.raises(SessionLostError, match="comes of no session that is known, so it is not"):
        client.upload("Assign", [message], AssignResponse)
    assert client.everything() == before


def test_a_long_header_of_a_session_is_refused_for_what_it_says(client: RawClient) -> None:
    before = client.everything()
    message = encode_header(long_header(client.session_id))
    with pytest.raises(StratagemError) as refused:
        client.upload("Assign", [message], AssignResponse)
    assert not isinstance(refused.value, SessionLostError)
    assert len(str(refused.value)) < 2_000
    assert client.everything() == before


def test_a_handshake_that_is_longer_than_any_is_refused(client: RawClient) -> None:
    asked = OpenSessionRequest(protocol_version=2, client=bytes(5 << 20))
    with pytest.raises(InvalidArgumentError, match="a caller without a session may send 4194304"):
        client.unary("OpenSession", asked, OpenSessionResponse)
