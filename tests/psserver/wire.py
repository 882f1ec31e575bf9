"""A client of the bare contract: it sends whatever frames a test wants to send."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import grpc
import torch
from google.protobuf.message import Message

from stratagem_proto.programs.optimizers import OPTIMIZERS, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.proofs import credential_of
from stratagem_proto.protocol import CHUNK_BYTES, PROTOCOL_VERSION, SESSION_ID_BYTES
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.status_pb2 import GetStatusRequest, GetStatusResponse
from stratagem_proto.v1.tensor_pb2 import (
    TensorSpec,
)
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram
from stratagem_proto.v1.variable_pb2 import (
    VARIABLE_KIND_MODEL,
    VARIABLE_KIND_SLOT,
    VariableSpec,
)
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_SET,
    AssignHeader,
    Assignment,
    AssignMode,
    AssignResponse,
    CreateVariablesHeader,
    CreateVariablesResponse,
    ListVariablesRequest,
    ListVariablesResponse,
)
from stratagem_proto.wire.frames import Assembler, Header, decode_frame, encode_frame, split
from stratagem_proto.wire.status import translated
from stratagem_proto.wire.tensors import spec_of
from stratagem_rpc.asking import SERVICE as STATUS_SERVICE
from stratagem_rpc.asking import observer_handshake
from stratagem_rpc.channel import open_channel
from tests.rpc_methods import prove

SERVICE = "stratagem_proto.v1.ParameterServerService"
SECONDS = 30.0
LARGE = 300_000  # elements; more than what is applied inline

Response = TypeVar("Response", bound=Message)


class RawClient:
    """One session with one server, numbered by hand."""

    def __init__(
        self,
        address: str,
        token: str,
        task: session_pb2.Task | None = None,
        role: session_pb2.Role = session_pb2.ROLE_CHIEF,
    ) -> None:
        self.address = address
        self.channel = open_channel(address)
        identifier = os.urandom(16)
        # As requests show it.
        self.session_id = identifier + credential_of(identifier, token)
        self.sequence = 0
        self.acknowledged = 0
        self._token = token
        self.task, self.role = task or session_pb2.Task(job="worker", index=0), role

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.channel.close()

    def open(self, version: int = PROTOCOL_VERSION) -> session_pb2.OpenSessionResponse:
        return self.shake_hands(self.shake_hands(version=version).incarnation, version)

    def shake_hands(
        self, run: bytes = b"", version: int = PROTOCOL_VERSION, oldest: int = 0
    ) -> session_pb2.OpenSessionResponse:
        """Opens the session if the server is that run."""
        request = session_pb2.OpenSessionRequest(
            protocol_version=version,
            oldest_protocol_version=oldest,
            session_id=self.session_id[:SESSION_ID_BYTES],
            role=self.role,
            task=self.task,
            incarnation=run,
        )
        self.prove("OpenSession", request)
        return self.unary("OpenSession", request, session_pb2.OpenSessionResponse)

    def prove(self, method: str, asking: session_pb2.OpenSessionRequest) -> None:
        """Proves that the client knows the token, in what it asks with."""
        with translated("the server", method):
            prove(self.channel, self._token, method, asking, SECONDS)

    def heartbeat(self) -> None:
        request = session_pb2.HeartbeatRequest(session_id=self.session_id)
        self.unary("Heartbeat", request, session_pb2.HeartbeatResponse)

    def key(self) -> session_pb2.RequestKey:
        """The next request's key; it acknowledges all requests before."""
        self.sequence += 1
        return session_pb2.RequestKey(
            session_id=self.session_id,
            sequence=self.sequence,
            acknowledged=self.sequence - 1,
        )

    def unary(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        seconds: float = SECONDS,
        service: str = SERVICE,
    ) -> Response:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = self.channel.unary_unary(f"/{service}/{method}")
        with translated("the server", method):
            data = call(request.SerializeToString(), timeout=seconds)
        return _told(response_type, data)

    def upload(
        self,
        method: str,
        messages: Iterable[bytes],
        response_type: type[Response],
        seconds: float = SECONDS,
    ) -> Response:
        """Sends the messages as they are."""
        call: grpc.StreamUnaryMultiCallable[bytes, bytes]
        call = self.channel.stream_unary(f"/{SERVICE}/{method}")
        with translated("the server", method):
            data = call(iter(messages), timeout=seconds)
        return _told(response_type, data)

    def download(self, request: pb.ReadRequest) -> Iterator[bytes]:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes]
        call = self.channel.unary_stream(f"/{SERVICE}/Read")
        with translated("the server", "Read"):
            yield from call(request.SerializeToString(), timeout=SECONDS)

    def create(self, **values: torch.Tensor) -> None:
        specs = [model_spec(name, value) for name, value in values.items()]
        self.create_as(specs, list(values.values()))

    def create_as(
        self, specs: Sequence[VariableSpec], values: Sequence[torch.Tensor]
    ) -> CreateVariablesResponse:
        header = CreateVariablesHeader(key=self.key(), variables=specs)
        return self.upload("CreateVariables", encoded(header, values), CreateVariablesResponse)

    def listing(self) -> dict[str, int]:
        """Versions of all variables by name."""
        request = ListVariablesRequest(session_id=self.session_id)
        response = self.unary("ListVariables", request, ListVariablesResponse)
        return {info.spec.name: info.version for info in response.variables}

    def read(self, *names: str) -> list[torch.Tensor]:
        selections = [pb.Selection(variable=name) for name in names]
        return self.select(pb.ReadRequest(selections=selections))[1]

    def select(self, request: pb.ReadRequest) -> tuple[pb.ReadHeader, list[torch.Tensor]]:
        request.session_id = self.session_id
        messages = self.download(request)
        first = decode_frame(next(messages), pb.ReadHeader)
        assert first.header is not None
        assembler = Assembler(sent_with(first.header))
        assembler.add(first.chunks)
        for message in messages:
            assembler.add(decode_frame(message, pb.ReadHeader).chunks)
        return first.header, assembler.finish()

    def everything(self) -> dict[str, tuple[int, bytes]]:
        """Version and bytes of every variable: the server's state, for comparison."""
        listed = self.listing()
        values = self.read(*listed)
        return {
            name: (version, value.reshape(-1).view(torch.uint8).numpy().tobytes())
            for (name, version), value in zip(listed.items(), values, strict=True)
        }

    def assign(
        self,
        name: str,
        value: torch.Tensor,
        mode: AssignMode = ASSIGN_MODE_SET,
        rows: torch.Tensor | None = None,
    ) -> AssignResponse:
        tensors = [value] if rows is None else [value, rows]
        item = Assignment(variable=name, mode=mode, value=0)
        if rows is not None:
            item.rows = 1
        header = AssignHeader(key=self.key(), assignments=[item], tensors=map(spec_of, tensors))
        return self.upload("Assign", encoded(header, tensors), AssignResponse)

    def update(
        self, program: OptimizerProgram, gradients: Mapping[str, torch.Tensor]
    ) -> pb.UpdateResponse:
        header = update_header(self.key(), program, gradients)
        return self.upload("Update", encoded(header, list(gradients.values())), pb.UpdateResponse)

    def update_and_read(self, header: pb.UpdateHeader, gradients: Sequence[torch.Tensor]) -> None:
        """Takes the answer, and leaves it."""
        call: grpc.StreamStreamMultiCallable[bytes, bytes]
        call = self.channel.stream_stream(f"/{SERVICE}/UpdateAndRead")
        for _ in call(iter(encoded(header, gradients)), timeout=SECONDS):
            pass


def sent_with(header: pb.ReadHeader) -> Sequence[TensorSpec]:
    """The tensors of the stream that a header begins."""
    return pb.ReadContents.FromString(header.contents).tensors


def _told(response_type: type[Response], data: bytes) -> Response:
    """A response without what follows it, of how far the server had come."""
    response = response_type.FromString(data)
    response.DiscardUnknownFields()
    return response


def encoded(
    header: Header, tensors: Sequence[torch.Tensor], chunk_bytes: int = CHUNK_BYTES
) -> list[bytes]:
    return [encode_frame(frame) for frame in split(header, tensors, chunk_bytes)]


def model_spec(name: str, value: torch.Tensor) -> VariableSpec:
    return VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)


def slot_spec(name: str, owner: str, value: torch.Tensor) -> VariableSpec:
    return VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_SLOT, slot_of=owner)


def optimizer_program(optimizer: torch.optim.Optimizer, name: str = "") -> OptimizerProgram:
    """The program of a local optimizer, as its hyperparameters are now."""
    class_name = type(optimizer).__name__
    rule = OPTIMIZERS[class_name]
    return OptimizerProgram(
        name=name or class_name,
        class_name=class_name,
        groups=[encode_values(values_of(rule, group)) for group in optimizer.param_groups],
    )


def sgd(lr: float = 1.0) -> OptimizerProgram:
    return optimizer_program(torch.optim.SGD([torch.empty(0)], lr=lr))


def update_header(
    key: session_pb2.RequestKey,
    program: OptimizerProgram,
    gradients: Mapping[str, torch.Tensor],
    group: int = 0,
) -> pb.UpdateHeader:
    references = [
        pb.GradientRef(variable=name, tensor=index, group=group)
        for index, name in enumerate(gradients)
    ]
    return pb.UpdateHeader(
        key=key,
        program=UpdateProgram(optimizer=program),
        gradients=references,
        tensors=map(spec_of, gradients.values()),
    )


def status_of(client: RawClient, with_variables: bool = False) -> GetStatusResponse:
    """What the server of a client says of itself."""
    request = GetStatusRequest(asking=observer_handshake(), with_variables=with_variables)
    client.prove("GetStatus", request.asking)
    return client.unary("GetStatus", request, GetStatusResponse, service=STATUS_SERVICE)


def indices(*rows: int) -> bytes:
    return torch.tensor(rows, dtype=torch.int64).numpy().tobytes()
