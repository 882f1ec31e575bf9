"""A call under way at a server, as its handler sees it, whichever transport it has come by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

import grpc
from typing_extensions import Self

from stratagem_proto.wire.segment import Segment

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import ShownCertificate

Take: TypeAlias = Callable[[bytes], None]


class CallMessages(ABC):
    """The messages of a call as they come, over which its handler iterates, on the event loop."""

    @property
    def is_over(self) -> bool:
        """Whether all messages are known to have been taken; gRPC tells that only at the end."""
        return False

    def divert(self, take: Take) -> None:  # noqa: B027 - a transport may be unable to
        """Pass further messages to a function as they arrive, if the transport can.

        The end of the call is still for the iterator, which raises what the function raises. Where
        the transport cannot, the iterator goes on to yield all messages.
        """

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> bytes:
        """Return the next message.

        Raises:
            StopAsyncIteration: The client has ended the call.
            StratagemError: It takes too long, or others have taken the place of the call.
        """


class DirectWriter(Protocol):
    """The way out of a call whose responses any thread may write, without the event loop."""

    @property
    def is_clear(self) -> bool:
        """Whether all responses so far are sent."""

    def write_at_once(self, message: bytes, /) -> None:
        """Send one response of several, without waiting for the client to read it."""


class ServerCall(ABC):
    """A call under way, which its handler gets as the argument after the request.

    In the order in which servers use it, on the event loop:

    1. The boundary of RPCs asks who calls: `address`, `session_id`, `certificate`.
    2. A handler of tensors looks for `segment` before it decodes the request.
    3. A handler returns its responses, or sends them by `write`; once it has told threads of
       `direct`, these send them, too.
    4. If something fails, the boundary ends the call by `abort`.

    There are two transports: gRPC (`GrpcCall` in `serving/entrance.py`) and sockets (`SocketCall`
    in `socket_server/call.py`). Another one implements `write` and `abort`, and overrides what it
    knows better; no handler changes.
    """

    segment: Segment | None = None
    """The memory that the client shares, in which its messages may name places."""

    session_id: bytes = b""
    """The only session that the connection may act for; empty if it may act for any."""

    @property
    def address(self) -> str:
        """Where the call comes from, without a port; "" where that says nothing."""
        return ""

    @property
    def certificate(self) -> ShownCertificate | None:
        """What the client has shown to a server with certificates, if anything."""
        return None

    @property
    def direct(self) -> DirectWriter | None:
        """What threads write responses by; None if only the event loop can."""
        return None

    @abstractmethod
    async def write(self, message: bytes, /) -> None:
        """Send one response of several."""

    @abstractmethod
    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str | bytes], ...] = (),
    ) -> NoReturn:
        """End the call with a status.

        Raises:
            grpc.aio.AbortError: Always.
        """
