"""One call over a socket: what comes in, what goes out, and the handler between."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

import grpc

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.status import detail_of
from stratagem_rpc.server_call import CallMessages, DirectWriter, ServerCall, Take
from stratagem_rpc.server_log import LOG
from stratagem_rpc.sockets.frames import WINDOW_BYTES, FrameKind, SocketFrame, parts
from stratagem_rpc.sockets.streams import Piece

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import ShownCertificate


class IncomingMessages(CallMessages):
    """The messages of a call over a socket.

    A large one is a memoryview, which whatever decodes messages takes as well.

    Args:
        first: The frame with the first message.
        emptied: Called when all messages so far were taken.
        patience: The most seconds until the next message; None for any time.
        give_back: Told of the bytes that were taken for a frame, once its message is passed on.
    """

    def __init__(
        self,
        first: SocketFrame,
        emptied: Callable[[], None],
        patience: float | None,
        give_back: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._frames = deque([first])
        self._nbytes = len(first.message)
        self._whole = first.is_last
        self._emptied, self._patience, self._give_back = emptied, patience, give_back
        self._arrival: asyncio.Future[None] | None = None
        self._taker: Take | None = None
        self._failure: BaseException | None = None

    @property
    def first(self) -> bytes | memoryview:
        """The first message, which stays until the end of the call; before any was taken."""
        return self._frames[0].message

    @property
    def is_much(self) -> bool:
        """Whether to stop reading until the handler has taken messages."""
        return self._nbytes > WINDOW_BYTES

    @property
    def is_over(self) -> bool:
        """Whether all messages have arrived and were taken."""
        return self._whole and not self._frames

    def divert(self, take: Take) -> None:
        # Passing a message to the iterator would take two rounds of the event loop.
        self._taker = take

    def put(self, frame: SocketFrame) -> None:
        """Add the message of a frame."""
        if self._taker is not None and not frame.is_last and not self._frames:
            self._give_back(frame.taken)
            return self._hand_over(self._taker, frame.message)
        # The last frame of a client that ends the call early has no message.
        if frame.message or not frame.is_last:
            self._frames.append(frame)
        self._nbytes += len(frame.message)
        self._whole = frame.is_last
        self._wake()

    def _hand_over(self, take: Take, message: Any) -> None:
        try:
            take(message)
        except Exception as error:
            self._taker, self._failure = None, error
            self._wake()

    def close(self) -> None:
        """Cancel the iteration, because no more messages arrive.

        Cancelling the handler's task is not enough: Python 3.11 loses the cancellation if a message
        arrives at the same time, and the handler would wait for the next one.
        """
        self._failure = asyncio.CancelledError()
        self._wake()

    def drop(self) -> None:
        """Drop what nobody has taken, once the call has ended."""
        while self._frames:
            self._give_back(self._frames.popleft().taken)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def __anext__(self) -> bytes:
        while not self._frames and self._failure is None:
            if self._whole:
                raise StopAsyncIteration
            self._emptied()
            await self._next_arrival()
        if self._failure is not None:
            raise self._failure
        frame = self._frames.popleft()
        self._nbytes -= len(frame.message)
        if frame.taken:
            self._give_back(frame.taken)
        return cast("bytes", frame.message)

    async def _next_arrival(self) -> None:
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._arrival, self._patience)
        except asyncio.TimeoutError as error:
            raise DeadlineExceededError(
                f"the next message of the call did not come in {self._patience:g} s; "
                "send the request again, from its beginning"
            ) from error


Seal: TypeAlias = Callable[[Piece], Iterable[Piece]]


class SendBuffer:
    """Sends frames in order. Its methods run on the event loop unless they say otherwise.

    Args:
        sock: The socket.
        patience: The most seconds in which the other end must read something; None for any time.
    """

    def __init__(self, sock: socket.socket, patience: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket, self._patience = sock, patience
        self._seal: Seal | None = None
        self._waiting: deque[memoryview] = deque()
        self._nbytes = 0
        self._held: list[bytes] | None = None
        self._progress: asyncio.Future[None] | None = None
        self._closed = False
        self._sending = threading.RLock()

    def encrypt(self, seal: Seal) -> None:
        """Send what a function makes of each piece from now on."""
        self._seal = seal

    @contextmanager
    def coalesced(self) -> Iterator[None]:
        """Collect the small frames of the block, and send them at its end by one system call."""
        self._held = []
        try:
            yield
        finally:
            with self._sending:
                self._flush()
                self._held = None

    @property
    def is_clear(self) -> bool:
        """Whether all bytes are sent; may be used in any thread."""
        return not self._waiting

    def send(self, kind: FrameKind, message: bytes, is_last: bool) -> None:
        """Send a frame as far as the socket takes it, and buffer the rest; in any thread."""
        pieces = parts(kind, message, is_last)
        with self._sending:
            if self._held is not None and len(pieces) == 1:
                self._held.extend(pieces)
                return
            if self._held:
                self._flush()
            for piece in pieces:
                self._send(piece)

    def _flush(self) -> None:
        if self._held:
            self._send(b"".join(self._held))
            self._held.clear()

    def _send(self, piece: bytes) -> None:
        if self._seal is None:
            return self._pass_on(memoryview(piece))
        for sealed in self._seal(piece):
            self._pass_on(memoryview(sealed))

    def _pass_on(self, part: memoryview) -> None:
        rest = part if self._waiting else part[self._sent(part) :]
        if rest and not self._closed:
            self._waiting.append(rest)
            self._nbytes += len(rest)
            if len(self._waiting) == 1:
                self._loop.call_soon_threadsafe(self._await_room)

    def _await_room(self) -> None:
        if self._waiting:
            self._loop.add_writer(self._socket, self._writable)

    def _sent(self, part: memoryview) -> int:
        try:
            return 0 if self._closed else self._socket.send(part)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # The client is gone, which the reading end notices, too. Other threads come here only
            # while the buffer is empty, and then `close` does not touch the event loop.
            self.close()
            return 0

    def _writable(self) -> None:
        with self._sending:
            while self._waiting and (sent := self._sent(self._waiting[0])):
                self._nbytes -= sent
                if rest := self._waiting.popleft()[sent:]:
                    self._waiting.appendleft(rest)
            if not self._waiting:
                self._loop.remove_writer(self._socket)
        self._wake()

    async def below(self, nbytes: int) -> None:
        """Wait until at most so many bytes are buffered.

        Raises:
            DeadlineExceededError: The other end has not read in time. The connection is closed.
        """
        while self._nbytes > nbytes:
            self._progress = self._progress or self._loop.create_future()
            try:
                progress = asyncio.shield(self._progress)
                await asyncio.wait_for(progress, self._patience)
            except asyncio.TimeoutError as error:
                self._break_off()
                raise DeadlineExceededError(
                    f"the client has read nothing for {self._patience:g} s; repeat the request"
                ) from error

    def _break_off(self) -> None:
        self.close()
        with suppress(OSError):
            # The reading end then sees the end of the stream.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop all buffered bytes; call it before the socket is closed."""
        with self._sending:
            if self._waiting:
                self._loop.remove_writer(self._socket)
            self._closed = True
            self._waiting.clear()
            self._nbytes = 0
        self._wake()

    def _wake(self) -> None:
        if self._progress is not None:
            self._progress.set_result(None)
            self._progress = None


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


class SocketCall(ServerCall):
    """A call over a socket."""

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
        self.session_id, self._certificate = client
        self._handler, self._path, self._out = handler, path, out
        self._held: bytes | None = None

    @property
    def certificate(self) -> ShownCertificate | None:
        return self._certificate

    @property
    def direct(self) -> DirectWriter:
        return self

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
        if handler.response_streaming:
            if handler.request_streaming:
                answers = handler.stream_stream(self.requests, self)
            else:
                answers = handler.unary_stream(self.requests.first, self)
            if not isinstance(answers, Awaitable):
                return await self._iterate(answers)
            await answers
            return self._end(grpc.StatusCode.OK)
        if handler.request_streaming:
            response = await handler.stream_unary(self.requests, self)
        else:
            response = await handler.unary_unary(self.requests.first, self)
        self._send(response, is_last=True)

    async def _iterate(self, responses: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(responses):
            async for response in responses:
                if self._held is not None:
                    self._send_held()
                if not self._out.is_clear:
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

    async def write(self, message: bytes, /) -> None:
        """Send one response of several.

        Raises:
            DeadlineExceededError: The client has not read in time.
        """
        self._send(message)
        await self._out.below(WINDOW_BYTES)

    @property
    def is_clear(self) -> bool:
        return self._out.is_clear

    def write_at_once(self, message: bytes, /) -> None:
        self._send(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str | bytes], ...] = (),
    ) -> NoReturn:
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
