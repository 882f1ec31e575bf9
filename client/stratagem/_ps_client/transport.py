"""Calls of a server, and the choice of the transport by which they go."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from stratagem_proto.v1.session_pb2 import OpenSessionRequest
from stratagem_proto.wire.segment import Segment


@dataclass(frozen=True)
class Traffic:
    """Bytes of messages that this process and servers have exchanged.

    Those of repeated requests count each time; what gRPC, HTTP/2 and TCP add does not.

    Attributes:
        sent_bytes: To servers. To parameter servers: gradients, and values that were written. To
            workers: functions, and what they need.
        received_bytes: From servers. From parameter servers: values that were read. From workers:
            what functions returned, wrote and logged.
    """

    __module__ = "stratagem"

    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes + other.sent_bytes, self.received_bytes + other.received_bytes
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes - other.sent_bytes, self.received_bytes - other.received_bytes
        )


class TrafficMeter:
    """Counts messages as they pass. Thread-safe."""

    def __init__(self) -> None:
        self._sent = self._received = 0
        self._lock = threading.Lock()

    @property
    def total(self) -> Traffic:
        with self._lock:
            return Traffic(self._sent, self._received)

    def sending(self, messages: Iterable[bytes], placed: int = 0) -> Iterator[bytes]:
        """Return the same messages, counted with the bytes that the first names in shared memory.

        A tuple has one, which is counted here; those of others are as they are asked for.
        """
        if not isinstance(messages, tuple):
            return self._counted(messages)
        with self._lock:
            self._sent += len(messages[0]) + placed
        return iter(messages)

    def _counted(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for message in messages:
            self.sent(len(message))
            yield message

    def sent(self, nbytes: int) -> None:
        with self._lock:
            self._sent += nbytes

    def received(self, nbytes: int) -> None:
        with self._lock:
            self._received += nbytes


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
    """The messages of an answer; a transport may override how the next one comes.

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
        self.received: Callable[[int], None] = lambda nbytes: None
        self.reached: bytes = b""

    def __next__(self) -> bytes:
        message = next(self._messages)
        self.received(len(message))
        return message


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
    push: Callable[[], None] = lambda: None


class Transport(ABC):
    """A way to one server: gRPC or sockets. Thread-safe.

    A session chooses its transport once, when the server has answered the handshake and said which
    sockets it has (`ServerTransport.learn`). Then, for each attempt of a request, in this order:

    1. `send` begins a call. Where it raises `OSError` or `MalformedStreamError`, nothing was sent,
       and the call may go by another transport.
    2. `Attempt.push` sends a call that is pipelined, with those before it.
    3. Whoever waits iterates over `Attempt.responses`, where failures are `grpc.RpcError`s.
    4. `Attempt.call.cancel` gives it up, in any thread.

    The heartbeat calls `trim` now and then, `ServerRoute` calls `retire` when it leaves the server
    for another one, and `close` at the end. Another transport overrides these and no more.

    Attributes:
        way: How calls go, as the setting names it: "grpc", "unix" or "tcp".
    """

    way: str

    @abstractmethod
    def send(self, call: Call) -> Attempt:
        """Begin a call; ValueError says that the transport is closed."""

    def trim(self) -> None:  # noqa: B027 - not all keep memory
        """Give up memory that was not used lately."""

    def retire(self) -> None:  # noqa: B027 - gRPC's channels may be left open
        """Let the calls under way be the last ones."""

    @abstractmethod
    def close(self) -> None:
        """End all calls; none can be begun any more."""


def once(answer: Callable[[], Value]) -> Iterator[Value]:
    """Yield the one value of a function, which is called when the value is asked for."""
    yield answer()
