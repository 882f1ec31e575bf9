"""One call over a socket, answered by the same handlers as calls by gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import grpc

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.server_log import LOG
from stratagem_proto.sockets.frames import WINDOW_BYTES, FrameKind
from stratagem_proto.sockets.server.incoming_messages import IncomingMessages
from stratagem_proto.sockets.server.send_buffer import SendBuffer
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.status import detail_of

if TYPE_CHECKING:
    from stratagem_proto.certificates.shown import ShownCertificate

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class _Details(NamedTuple):
    """The details of a call by which gRPC finds its handler."""

    method: str
    invocation_metadata: tuple[()] = ()


def find_handler(services: Sequence[grpc.GenericRpcHandler], path: bytes) -> Handler | None:
    """Return the handler of a path's calls, or None."""
    details: Any = _Details(path.decode(errors="replace"))
    return next(filter(None, (each.service(details) for each in services)), None)


class SocketClient(NamedTuple):
    """Whose calls come over a socket.

    Attributes:
        session_id: The session that it may act for.
        certificate: What it has shown; None where nobody shows any.
    """

    session_id: bytes
    certificate: ShownCertificate | None


class SocketCall:
    """A call under way, which its handler uses like the context of a call by gRPC.

    Attributes:
        segment: The shared memory in which its messages may name places; None if there is none.
        session_id: The session that its connection may act for.
        certificate: What its client has shown; None where nobody shows any.
    """

    def __init__(
        self,
        handler: Handler | None,
        path: bytes,
        requests: IncomingMessages,
        out: SendBuffer,
        segment: Segment | None,
        client: SocketClient,
    ) -> None:
        self.requests, self.segment = requests, segment
        self.session_id, self.certificate = client
        self._handler, self._path, self._out = handler, path, out
        self._held: bytes | None = None

    async def run(self) -> None:
        """Answer the call."""
        try:
            await self._answer()
        except grpc.aio.AbortError:
            pass  # its status is sent
        except DeadlineExceededError as error:
            LOG.info("a call over a socket was given up", why=error.message)
        except Exception:
            LOG.exception("a call over a socket failed", path=self._path)
            self._end(grpc.StatusCode.UNKNOWN, "the server failed; see its log")

    async def _answer(self) -> None:
        handler: Any = self._handler
        if handler is None:
            return self._end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if handler.response_streaming and handler.request_streaming:
            return await self._stream(handler.stream_stream(self.requests, self))
        if handler.response_streaming:
            return await self._stream(handler.unary_stream(self.requests.first, self))
        if handler.request_streaming:
            response = await handler.stream_unary(self.requests, self)
        else:
            response = await handler.unary_unary(self.requests.first, self)
        self._send(response, is_last=True)

    async def _stream(self, answers: Any) -> None:
        if isinstance(answers, Awaitable):
            await answers
            return self._end(grpc.StatusCode.OK)
        await self._iterate(answers)

    async def _iterate(self, responses: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(responses):
            async for response in responses:
                self._send_held()
                if not self.is_clear:
                    await self._out.below(WINDOW_BYTES)
                self._hold(response)
        if self._held is None:
            return self._end(grpc.StatusCode.OK)
        self._send_held(is_last=True)

    def _hold(self, response: bytes) -> None:
        """Hold a response back until it is known whether it is the last one.

        So the client need not wait for another frame that only says that. A response about values
        in shared memory is sent soon, since the client can read them while the handler goes on.
        """
        self._held = response
        if self.segment is not None:
            asyncio.get_running_loop().call_soon(self._send_held)

    def _send_held(self, is_last: bool = False) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._send(held, is_last)

    async def write(self, message: bytes) -> None:
        """Send one response of several.

        Raises:
            DeadlineExceededError: The client has not read in time.
        """
        self._send(message)
        await self._out.below(WINDOW_BYTES)

    @property
    def is_clear(self) -> bool:
        """Whether all responses so far are sent; may be used in any thread."""
        return self._out.is_clear

    def write_at_once(self, message: bytes) -> None:
        """Send one response without waiting for the client to read it; in any thread."""
        self._send(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with a status.

        Raises:
            grpc.aio.AbortError: Always.
        """
        self._end(code, details, trailing_metadata)
        raise grpc.aio.AbortError

    def _send(self, message: bytes, is_last: bool = False) -> None:
        self._out.send(FrameKind.MESSAGE, message, is_last)

    def _end(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> None:
        self._held = None
        detail = detail_of(trailing_metadata)
        status = RecordedStatus(code=code.value[0], message=details, detail=detail)
        self._out.send(FrameKind.STATUS, status.SerializeToString(), is_last=True)
