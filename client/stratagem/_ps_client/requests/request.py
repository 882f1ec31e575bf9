"""What is asked of a server, as a value that can be sent more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from stratagem._ps_client.transport import Responses
from stratagem_proto.errors import MalformedStreamError
from stratagem_proto.protocol import MAX_CHUNK_BYTES, UPLOAD_CHUNK_BYTES
from stratagem_proto.v1 import (
    checkpoint_pb2,
    closure_pb2,
    draws_pb2,
    parameter_server_service_pb2,
    publication_pb2,
    succession_pb2,
)
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, Reached, RequestKey
from stratagem_proto.v1.variable_requests_pb2 import AssignHeader
from stratagem_proto.wire.frames import encode_at_once, encode_frame, split
from stratagem_proto.wire.placed import SegmentLayout, encode_placed, kinds_of, layout_of
from stratagem_proto.wire.segment import Segment


class _Method(NamedTuple):
    """What is the same for all requests of a method."""

    path: str
    uploads: bool
    mutates: bool


def _mutates(method: MethodDescriptor) -> bool:
    fields = method.input_type.fields_by_name
    header = fields["header"].message_type if method.client_streaming else None
    return "key" in (header.fields_by_name if header else fields)


_FILES = (
    parameter_server_service_pb2,
    checkpoint_pb2,
    closure_pb2,
    draws_pb2,
    publication_pb2,
    succession_pb2,
)

# By name; the services have no method in common.
_METHODS: Mapping[str, _Method] = {
    name: _Method(f"/{service.full_name}/{name}", method.client_streaming, _mutates(method))
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for name, method in service.methods_by_name.items()
}

# Fewer bytes are sent sooner than they are placed.
_LEAST_SHARED_BYTES = 128 << 10

_NO_TENSORS = layout_of(())

Result = TypeVar("Result")
Response = TypeVar("Response", bound=Message)


@dataclass(eq=False)
class Request(Generic[Result]):
    """One request to one server; it does not change once it is made, but for its stamp.

    Attributes:
        method: Name of the RPC.
        message: The header of a stream, or the whole request.
        receive: Makes the result of the encoded responses; called once for each attempt.
        tensors: What the stream carries. They must not change before the request ends.
        rest: More fields of the message, encoded.
        response_nbytes: Tensor bytes that may come back.
        response_room: Bytes of shared memory that these take; 0 if they do not go there.
        derived_nbytes: Bytes that the server needs for what it makes of the tensors.
        wait: Time that the server is asked to wait at most, in seconds.
        layout: That of the tensors; found out where it is not known.
        awaits: What the server waits for before it answers; "" for nothing.
        path: The RPC as gRPC calls it.
        mutates: Whether the request is numbered, to be applied once.
        opens: Whether it is the handshake, by which client and server agree on the rest.
        request_nbytes: Tensor bytes that the stream carries.
        is_stream: Whether its tensors travel in several messages, if they are sent. Several
            messages need a thread that feeds them, and so twice the processor time.
        room: Bytes of shared memory for its tensors, if they are better there; else 0.
    """

    method: str
    message: Message
    receive: Callable[[Responses], Result]
    tensors: Sequence[torch.Tensor] = ()
    rest: bytes = b""
    response_nbytes: int = 0
    response_room: int = 0
    derived_nbytes: int = 0
    wait: float = 0.0
    layout: SegmentLayout = _NO_TENSORS
    awaits: str = ""
    path: str = field(init=False)
    mutates: bool = field(init=False)
    opens: bool = field(init=False)
    request_nbytes: int = field(init=False)
    is_stream: bool = field(init=False)
    room: int = field(init=False)

    def __post_init__(self) -> None:
        # Each attempt asks for all of this.
        self.path, self._uploads, self.mutates = _METHODS[self.method]
        self.opens = self.method == "OpenSession"
        if self.tensors and self.layout is _NO_TENSORS:
            self.layout = layout_of(kinds_of(self.tensors))
        self.request_nbytes = sent = self.layout.nbytes
        self.is_stream = sent > MAX_CHUNK_BYTES
        is_shared = sent + self.response_nbytes >= _LEAST_SHARED_BYTES
        self.room = self.least_room if is_shared else 0

    def then(self, answered: Callable[[], None]) -> Request[Result]:
        """Return the same request, which calls a function once it has its result."""

        def receive(responses: Responses) -> Result:
            result = self.receive(responses)
            answered()
            return result

        return replace(self, receive=receive)

    def behind(self) -> Request[None]:
        """Return a write with tensors that nobody else changes, whose result nobody wants."""
        # `replace` takes longer than all else of this.
        return Request(
            self.method,
            self.message,
            _drained,
            [tensor.clone() for tensor in self.tensors],
            self.rest,
            derived_nbytes=self.derived_nbytes,
            wait=self.wait,
            layout=self.layout,
        )

    @property
    def handshake(self) -> OpenSessionRequest | None:
        """The message that opens a session; None of other requests."""
        message = self.message
        return message if isinstance(message, OpenSessionRequest) else None

    @property
    def is_applied_once(self) -> bool:
        """Whether a counted step that is repeated does not apply it again."""
        message = self.message
        if isinstance(message, UpdateHeader):
            # Contributions and kept gradients belong to the process that sends them.
            return not (message.HasField("contribution") or message.backward.keep)
        return isinstance(message, AssignHeader)

    def stamp(self, key: RequestKey) -> None:
        """Write into the message which session sends it, and under which number."""
        message = cast(_Stamped, self.message)
        if self.mutates:
            message.key.CopyFrom(key)
            return
        fields = self.message.DESCRIPTOR.fields_by_name
        message.session_id = key.session_id
        if "finished" in fields:
            message.finished, message.report = key.finished, key.report
        if "trace_parent" in fields:
            message.trace_parent = key.trace_parent

    def acknowledge(self, number: int) -> None:
        """Tell with a stamped mutation that outcomes up to a number are known."""
        key = cast(_Stamped, self.message).key
        key.acknowledged = min(number, key.sequence - 1)

    @property
    def session_id(self) -> bytes:
        """The session that sends it, once it is stamped."""
        message = cast(_Stamped, self.message)
        return message.key.session_id if self.mutates else message.session_id

    @property
    def least_room(self) -> int:
        """Bytes of shared memory that its tensors take if they go there."""
        # Values take the place of the gradients.
        return max(self.layout.room, self.response_room)

    def encoded(self, segment: Segment | None = None) -> Iterable[bytes]:
        """Return the messages to send, a tuple of one for all but streams.

        The tensors are copied into the segment, if there is one.
        """
        if not self._uploads and self.response_room:
            cast(_Stamped, self.message).into_segment = segment is not None
        header = self.message.SerializeToString() + self.rest
        if not self._uploads:
            return (header,)
        if segment is not None:
            return (encode_placed(header, self.tensors, segment, self.layout),)
        if not self.is_stream:
            return (encode_at_once(header, self.tensors),)
        whole = type(self.message).FromString(header) if self.rest else self.message
        return map(encode_frame, split(whole, self.tensors, UPLOAD_CHUNK_BYTES))


class _Stamped(Protocol):
    """The fields of messages that are set when one is sent; each message has some of them."""

    session_id: bytes
    trace_parent: str
    finished: int
    report: bytes
    into_segment: bool

    @property
    def key(self) -> RequestKey: ...


def _drained(responses: Responses) -> None:
    for message in responses:  # it says no more than that it was applied
        responses.reached = Reached.FromString(message).reached


def sole(response_type: type[Response]) -> Callable[[Responses], Response]:
    """Return a receiver of exactly one message."""

    def receive(responses: Responses) -> Response:
        # The status comes after the message, so the stream is read to its end.
        messages = list(responses)
        if len(messages) != 1:
            raise MalformedStreamError(
                f"the server sent {len(messages)} messages where one "
                f"{response_type.__name__} was expected"
            )
        responses.reached = Reached.FromString(messages[0]).reached
        return response_type.FromString(messages[0])

    return receive
