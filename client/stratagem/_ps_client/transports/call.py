"""One call of a server's method, whichever way it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from stratagem_proto.v1.session_pb2 import OpenSessionRequest
from stratagem_proto.wire.segment import Segment

Value = TypeVar("Value")


class Style(Enum):
    """When a call is sent, and its responses are asked for.

    Attributes:
        SENT: At once; whenever it suits.
        AWAITED: As late as when its one response is asked for, which is soon.
        PIPELINED: When it is pushed on, a single message, by one thread at a time; its one response
            after those of all that were pipelined before.
    """

    SENT = "sent"
    AWAITED = "awaited"
    PIPELINED = "pipelined"


class Call(NamedTuple):
    """What to send.

    Attributes:
        path: The method, as gRPC names it.
        encode: Gives the encoded requests; those of a call with a segment may name places in it.
        timeout: Seconds in which the last response must have come.
        uploads: Whether there may be more than one request; then there is one response, unless it
            downloads, too.
        downloads: Whether there may be more than one response.
        style: When it is sent, and its responses are asked for.
        room: Bytes of a segment that the tensors of the call would take; 0 if they are better sent.
        handshake: The message of a call that opens a session, into which a proof is written before
            it is encoded; None of other calls.
    """

    path: str
    encode: Callable[[Segment | None], Iterator[bytes]]
    timeout: float
    uploads: bool = False
    downloads: bool = False
    style: Style = Style.SENT
    room: int = 0
    handshake: OpenSessionRequest | None = None


class Cancellable(Protocol):
    """A call that can be given up."""

    def cancel(self) -> object:
        """Give the call up, if it has not ended."""


class Responses(Iterator[bytes]):
    """The messages of an answer.

    Attributes:
        segment: What they may name places in, until another one than the last is asked for; None if
            there is nothing.
        received: Told how many bytes each message has, and how many it names there.
        reached: How far the server had come, as in the message `Reached`; b"" before an answer
            says so.
    """

    def __init__(self, messages: Iterator[bytes], segment: Segment | None = None) -> None:
        self._messages = messages
        self.segment: Segment | None = segment
        self.received: Callable[[int], None] = _uncounted
        self.reached: bytes = b""

    def __next__(self) -> bytes:
        message = next(self._messages)
        self.received(len(message))
        return message


def _uncounted(nbytes: int) -> None:
    """Do nothing: nobody counts these bytes."""


def _nothing() -> None:
    """Do nothing: the call was sent at once."""


class Attempt(NamedTuple):
    """A call on its way.

    Failures are raised as `grpc.RpcError`s where the responses are asked for, as gRPC itself does.

    Attributes:
        responses: What is answered, as it comes.
        call: To give it up.
        push: Sends it, with those before, if it is kept back for those that follow.
    """

    responses: Responses
    call: Cancellable
    push: Callable[[], None] = _nothing


def once(answer: Callable[[], Value]) -> Iterator[Value]:
    """Yield the one value of a function, which is called when the value is asked for."""
    yield answer()
