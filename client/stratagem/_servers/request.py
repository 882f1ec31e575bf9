"""What is asked of a server, as a value that can be sent more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from google.protobuf.message import Message

from stratagem._servers.transports.call import Responses
from stratagem_proto.codec import split
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.frames import encode_frame
from stratagem_proto.placed import encode_placed, needed
from stratagem_proto.protocol import CHUNK_BYTES
from stratagem_proto.segment import Segment
from stratagem_proto.v1 import (
    checkpoint_pb2,
    closure_pb2,
    draws_pb2,
    parameter_server_pb2,
)
from stratagem_proto.v1.session_pb2 import RequestKey


class _Method(NamedTuple):
    path: str
    uploads: bool


# By name; the services have no method in common.
_METHODS: Mapping[str, _Method] = {
    name: _Method(f"/{service.full_name}/{name}", method.client_streaming)
    for file in (parameter_server_pb2, checkpoint_pb2, closure_pb2, draws_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for name, method in service.methods_by_name.items()
}

# Fewer bytes are sent sooner than they are placed.
_LEAST_SHARED_BYTES = 128 << 10

Result = TypeVar("Result")
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True)
class Request(Generic[Result]):
    """One request to one server.

    Attributes:
        method: Name of the RPC.
        message: The header of a stream, or the whole request.
        receive: Makes the result of the encoded responses; called once for each
            attempt.
        tensors: What the stream carries. They must not change before the request
            ends.
        response_nbytes: Tensor bytes that may come back.
        response_room: Bytes of shared memory that these take; 0 if they do not go
            there.
        derived_nbytes: Bytes that the server needs for what it makes of the tensors.
        wait: Time that the server is asked to wait at most, in seconds.
    """

    method: str
    message: Message
    receive: Callable[[Responses], Result]
    tensors: Sequence[torch.Tensor] = ()
    response_nbytes: int = 0
    response_room: int = 0
    derived_nbytes: int = 0
    wait: float = 0.0

    def then(self, answered: Callable[[], None]) -> Request[Result]:
        """The same request, which calls a function once it has its result."""

        def receive(responses: Responses) -> Result:
            result = self.receive(responses)
            answered()
            return result

        return replace(self, receive=receive)

    def owned(self) -> Request[Result]:
        """The same request, with tensors that nobody else changes."""
        return replace(self, tensors=[tensor.clone() for tensor in self.tensors])

    @property
    def path(self) -> str:
        """The RPC as gRPC calls it."""
        return _METHODS[self.method].path

    @property
    def mutates(self) -> bool:
        """Whether the request is numbered, to be applied once."""
        return "key" in self.message.DESCRIPTOR.fields_by_name

    @property
    def opens(self) -> bool:
        """Whether it is the handshake, by which client and server agree on the rest."""
        return self.method == "OpenSession"

    @property
    def request_nbytes(self) -> int:
        """Tensor bytes that the stream carries."""
        return sum([tensor.nbytes for tensor in self.tensors])

    def stamp(self, key: RequestKey) -> None:
        """Writes into the message which session sends it, and under which number."""
        fields = self.message.DESCRIPTOR.fields_by_name
        if "key" in fields:
            cast(_Numbered, self.message).key.CopyFrom(key)
            return
        cast(_Anonymous, self.message).session_id = key.session_id
        if "finished" in fields:
            telling = cast(_Telling, self.message)
            telling.finished, telling.report = key.finished, key.report
        if "trace_parent" in fields:
            cast(_Traced, self.message).trace_parent = key.trace_parent

    @property
    def session_id(self) -> bytes:
        """The session that sends it, once it is stamped."""
        if self.mutates:
            return cast(_Numbered, self.message).key.session_id
        return cast(_Anonymous, self.message).session_id

    @property
    def room(self) -> int:
        """Bytes of shared memory for its tensors, if they are better there; else 0."""
        nbytes = self.request_nbytes + self.response_nbytes
        if nbytes < _LEAST_SHARED_BYTES:
            return 0
        return needed(self.tensors) + self.response_room

    def encoded(self, segment: Segment | None = None) -> Iterable[bytes]:
        """The messages to send; a small request is a single one.

        Args:
            segment: Memory shared with the server for its tensors; None if there is
                none.
        """
        if not _METHODS[self.method].uploads:
            if self.response_room:
                cast(_Reading, self.message).into_segment = segment is not None
            return (self.message.SerializeToString(),)
        if segment is not None:
            return (encode_placed(self.message, self.tensors, segment),)
        return map(encode_frame, split(self.message, self.tensors, CHUNK_BYTES))


class _Numbered(Protocol):
    @property
    def key(self) -> RequestKey: ...


class _Anonymous(Protocol):
    session_id: bytes


class _Traced(Protocol):
    trace_parent: str


class _Telling(Protocol):
    finished: int
    report: bytes


class _Reading(Protocol):
    into_segment: bool


def sole(response_type: type[Response]) -> Callable[[Iterator[bytes]], Response]:
    """A receiver of exactly one message."""

    def receive(responses: Iterator[bytes]) -> Response:
        # The status comes after the message, so the stream is read to its end.
        messages = list(responses)
        if len(messages) != 1:
            raise MalformedStreamError(
                f"the server sent {len(messages)} messages where one "
                f"{response_type.__name__} was expected"
            )
        return response_type.FromString(messages[0])

    return receive
