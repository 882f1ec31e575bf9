"""The handlers of every RPC of a parameter server, which keeps its state from call to call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import torch
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from stratagem._ps_client.requests.variables import Writing, assign, create
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, Task
from stratagem_proto.v1.tensor_pb2 import Frame
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_ADD
from stratagem_proto.wire.status import CallError
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.environment import Compute, Environment
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.service import Service
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.state import ServerState
from stratagem_rpc.serving.access import first_message, handshake_finder
from tests.fuzzing.target import MOST_BYTES, Target
from tests.roles import BESIDES, services
from tests.simulation.server_run import ServedCall, answered
from tests.simulation.virtual_loop import VirtualLoop

# What is kept grows, as it does for a client that creates variables.
_CALLS_OF_ONE_STATE = 500
_SESSION = bytes(range(16))
_MINUTES = 1000.0

# One writes to a folder that the request names, the other lasts as long as the session.
_LEFT_OUT = {"BeginSave", "AttendSession"}
_LONGEST_WAIT = 10.0


class _Compute(Compute):
    """Works on the event loop alone."""

    async def run(self, work: Any, nbytes: int) -> Any:
        return work()


def _methods() -> list[MethodDescriptor]:
    found = (one for each in services() if each.name not in BESIDES for one in each.methods)
    return [one for one in found if one.name not in _LEFT_OUT]


class _Server:
    """One state, and a chief's session with it."""

    def __init__(self) -> None:
        self.loop, self.calls, self._sequence = VirtualLoop(), 0, 0
        settings = ServerSettings(
            lease_seconds=_MINUTES, variable_bytes=4 * MOST_BYTES, staged_bytes=4 * MOST_BYTES
        )
        environment = Environment(self.loop.time, lambda size: bytes(size), _Compute())
        self.loop.run_until_complete(self._begin(settings, environment))

    async def _begin(self, settings: ServerSettings, environment: Environment) -> None:
        self.state = ServerState(settings, environment)
        service = Service(self.state)
        self.handlers = (*service.handlers, *service.handlers_for_all)
        name = self.state.ledger.verify_caller(_SESSION)
        self.state.open_session(Session(name, ROLE_CHIEF, Task(job="worker")))
        value = torch.ones(2, 3)
        spec = VariableSpec(name="w", tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
        self.state.store.create([spec], [value])

    @property
    def is_used_up(self) -> bool:
        """Whether it has answered enough, or has ended the session."""
        is_open = any(True for _ in self.state.ledger.opened())
        return self.calls >= _CALLS_OF_ONE_STATE or not is_open

    def answer(self, method: MethodDescriptor, data: bytes) -> None:
        """Answer a request in the chief's session."""
        self.calls += 1
        first = _parsed(GetMessageClass(first_message(method)), data)
        if first is None:
            return
        self._identify(method, first)
        asked = self._answered(method, first.SerializeToString())
        self.loop.run_until_complete(asyncio.wait_for(asked, _MINUTES))

    def _identify(self, method: MethodDescriptor, first: Any) -> None:
        fields = first.DESCRIPTOR.fields_by_name
        if "wait_seconds" in fields:
            first.wait_seconds = min(first.wait_seconds, _LONGEST_WAIT)
        if handshake_finder(first_message(method)) is not None:
            return
        if "key" in fields:
            self._sequence += 1
            first.key.session_id, first.key.sequence = _SESSION, self._sequence
            first.key.acknowledged = self._sequence - 1
        elif "session_id" in fields and fields["session_id"].type == FieldDescriptor.TYPE_BYTES:
            first.session_id = _SESSION

    async def _answered(self, method: MethodDescriptor, first: bytes) -> None:
        path = f"/{method.containing_service.full_name}/{method.name}"
        is_stream = method.client_streaming
        message = Frame(header=first).SerializeToString() if is_stream else first
        try:
            await answered(self.handlers, path, [message], ServedCall(None))
        except CallError as error:
            assert error.code() is not grpc.StatusCode.INTERNAL, error


def _parsed(kind: type[Message], data: bytes) -> Message | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


class _Requests:
    """Decodes a request whose first byte says the RPC."""

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._methods = _methods()

    def __call__(self, data: bytes) -> None:
        if self._server is None or self._server.is_used_up:
            self._server = _Server()
        if data:
            self._server.answer(self._methods[data[0] % len(self._methods)], data[1:])

    def seeds(self) -> Iterator[bytes]:
        """Yield the headers of usual requests, and an empty request of each RPC."""
        value = torch.ones(2, 3)
        spec = VariableSpec(name="v", tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
        usual = {
            "CreateVariables": create([spec], [value]).message,
            "Assign": assign([Writing("w", ASSIGN_MODE_ADD, value)]).message,
        }
        for number, method in enumerate(self._methods):
            yield bytes([number])
            if message := usual.get(method.name):
                yield bytes([number]) + message.SerializeToString()


_requests = _Requests()

TARGETS: Mapping[str, Target] = {"requests": Target(_requests, _requests.seeds)}
