"""One call of a server's method, whichever way it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Call:
    """What to send.

    Attributes:
        path: The method, as gRPC names it.
        messages: The encoded requests.
        timeout: Seconds in which the last response must have come.
        uploads: Whether there may be more than one request; then there is one response.
        awaited: Whether there is one response, which is asked for at once, so that
            nothing need be sent before.
    """

    path: str
    messages: Iterator[bytes]
    timeout: float
    uploads: bool = False
    awaited: bool = False


class Cancellable(Protocol):
    """A call that can be given up."""

    def cancel(self) -> object:
        """Gives the call up, if it has not ended."""


@dataclass(frozen=True)
class Attempt:
    """A call on its way: the responses as they come, and how to give it up.

    Failures are raised as `grpc.RpcError`s where the responses are asked for, as
    gRPC itself does.
    """

    responses: Iterator[bytes]
    call: Cancellable


class Transport(Protocol):
    """A way to call a server. Thread-safe."""

    def send(self, call: Call) -> Attempt:
        """Begins a call."""

    def close(self) -> None:
        """Ends all calls; none can be begun any more."""


def once(answer: Callable[[], Value]) -> Iterator[Value]:
    """The one value of a function, which is called when it is asked for."""
    yield answer()
