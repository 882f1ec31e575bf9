"""One client of a socket, as the server sees it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stratagem_proto.errors import DeadlineExceededError, MalformedStreamError, StratagemError
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import to_record
from stratagem_rpc.eager import begin
from stratagem_rpc.server_log import LOG
from stratagem_rpc.socket_server.call import (
    IncomingMessages,
    SendBuffer,
    SocketCall,
    SocketClient,
)
from stratagem_rpc.socket_server.memory import PeerFrames, PeerMemory, SharingStream
from stratagem_rpc.sockets.closing import hang_up
from stratagem_rpc.sockets.frames import (
    HELLO_BYTES,
    WINDOW_BYTES,
    FrameKind,
    FrameReader,
    Greeting,
    SocketFrame,
)
from stratagem_rpc.sockets.streams import PlainStream, Stream

if TYPE_CHECKING:
    from stratagem_rpc.certificates.folder import ShownCertificate
    from stratagem_rpc.socket_server.listener import Encryption, SocketListener

# With more queued calls, or more bytes than the window, nothing more is read from a client.
_MOST_QUEUED = 64

# A connection that has not proved that it is a client is closed after this time.
_HELLO_SECONDS = 5.0

# A frame has at most 36 MiB, and clients give up a call that comes more slowly than 1 MB/s.
_FRAME_SECONDS = 60.0


class Peer:
    """A client, whose calls are answered one by one once it has proved that it is one.

    Args:
        listener: The listener that accepted the connection.
        sock: The socket of the connection.
        who: The client's address, for the log.
    """

    def __init__(self, listener: SocketListener, sock: socket.socket, who: str) -> None:
        self._listener, self._socket, self._who = listener, sock, who
        self._loop = asyncio.get_running_loop()
        self._out = SendBuffer(sock, listener.patience)
        self._greeting = Greeting(self._secret)
        # Before its proof a client cannot send a larger message.
        self._frames = PeerFrames(listener.memory, lambda: self.session_id, self._retry)
        self._reader = FrameReader(listener.scratch, HELLO_BYTES, self._frames.take)
        # How many frames were complete when one had come in part, and when that was.
        self._partial: tuple[int, float] = (-1, 0.0)
        self._patience = self._loop.call_later(_HELLO_SECONDS, self.close)
        self._take: Callable[[SocketFrame], None] = self._greet
        self._memory = PeerMemory(listener.reserve)
        self._call: SocketCall | None = None
        self._queued = _QueuedCalls()
        self._task: asyncio.Future[None] | None = None
        self._whole = True
        self._paused = self._closing = self._closed = False
        self._certificate: ShownCertificate | None = None
        self._handshake: asyncio.Future[None] | None = None
        self._stream: Stream = self._plain(sock)
        if listener.encryption is not None and sock.family != socket.AF_UNIX:
            self._handshake = asyncio.ensure_future(self._encrypt(listener.encryption))
        else:
            self._loop.add_reader(sock, self._readable)

    @property
    def session_id(self) -> bytes:
        """The session that it acts for; empty before it has named one."""
        return self._greeting.session_id

    def _plain(self, sock: socket.socket) -> Stream:
        if sock.family == socket.AF_UNIX:
            return SharingStream(sock, self._memory)
        return PlainStream(sock)

    async def _encrypt(self, encryption: Encryption) -> None:
        """Shake hands, and read what the client says then, some of which may have come with it."""
        try:
            self._stream, self._certificate = stream, _ = await encryption.begin(self._socket)
            self._out.encrypt(stream.sealed)
            self._take_together(stream.opened(self._reader))
        except ConnectionError:
            return self.close()
        except (OSError, StratagemError) as error:
            return self.refuse(getattr(error, "message", str(error)))
        if self._reader.lacks_memory:
            self._pause()
        if not self._paused and not self._closed:
            self._loop.add_reader(self._socket, self._readable)

    def _readable(self) -> None:
        try:
            self._receive()
            while self._reader.is_within:
                self._receive()
            if self._reader.lacks_memory:
                self._pause()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
        except MalformedStreamError as error:
            self.refuse(error.message)

    def _retry(self) -> None:
        """Go on with a frame for which there was no memory."""
        if self._closed:
            return
        self._reader.proceed()
        if self._reader.lacks_memory:
            return
        try:
            self._take_together(self._stream.opened(self._reader))
        except MalformedStreamError as error:
            return self.refuse(error.message)
        self._resume()

    def _receive(self) -> None:
        frames = self._stream.frames(self._reader)
        if len(frames) == 1:
            # A single answer is sent before the call is cleaned up, since its client waits for it.
            self._take(frames[0])
        else:
            self._take_together(frames)

    def _take_together(self, frames: list[SocketFrame]) -> None:
        with self._out.coalesced():
            for frame in frames:
                self._take(frame)

    def _greet(self, frame: SocketFrame) -> None:
        answer = self._greeting.answer(frame)
        if self._greeting.is_over:
            self._listener.admit(self)
            self._patience.cancel()
            self._reader.admit()
            self._take = self._handle_frame
        self._out.send(FrameKind.HELLO, answer, is_last=True)

    def _secret(self, session_id: bytes) -> bytes:
        """Return the secret of a session with this client, by the certificate that it has shown.

        The client of a Unix socket has shown one elsewhere.

        Raises:
            MalformedStreamError: Nobody knows any more.
        """
        offered = self._listener.offered
        if self._listener.encryption is not None and self._certificate is None:
            self._certificate = offered.certificate_of(session_id)
            if self._certificate is None:
                raise MalformedStreamError(
                    "the certificate of the session is not known; open another"
                )
        return offered.secret(session_id, self._certificate)

    def _handle_frame(self, frame: SocketFrame) -> None:
        if frame.kind == FrameKind.CALL and self._whole and self._call is None:
            self._whole = frame.is_last
            serving = begin(self._serve(frame))
            if not serving.done():
                self._task = serving
        elif frame.kind == FrameKind.CALL and self._whole and frame.is_last:
            self._enqueue(frame)
        elif frame.kind == FrameKind.MESSAGE and not self._whole:
            self._continue(frame)
        elif frame.kind == FrameKind.SEGMENT and self._whole and self._call is None:
            self._share()
        else:
            raise MalformedStreamError(f"a frame of kind {frame.kind} is not allowed at this point")

    def _enqueue(self, frame: SocketFrame) -> None:
        self._queued.put(frame)
        if self._queued.are_many:
            self._pause()

    def _share(self) -> None:
        status = RecordedStatus()
        try:
            self._memory.replace(self.session_id)
        except StratagemError as error:
            LOG.info("a client's memory is not shared", why=error.message)
            status = to_record(error)
        self._out.send(FrameKind.STATUS, status.SerializeToString(), is_last=True)

    def _continue(self, frame: SocketFrame) -> None:
        self._whole = frame.is_last
        # Messages of a call that has ended are dropped.
        if self._call is None:
            return self._frames.give_back(frame.taken)
        self._call.requests.put(frame)
        if self._call.requests.is_much:
            self._pause()

    def _pause(self) -> None:
        if not self._paused and not self._closed:
            self._paused = True
            self._loop.remove_reader(self._socket)

    def _resume(self) -> None:
        if not self._paused or self._closed or self._queued.are_many or self._reader.lacks_memory:
            return
        if self._call is None or not self._call.requests.is_much:
            self._paused = False
            self._loop.add_reader(self._socket, self._readable)

    async def _serve(self, frame: SocketFrame) -> None:
        try:
            await self._answer(frame)
            while self._queued and not self._closing:
                await self._answer(self._queued.take())
        finally:
            self._call = self._task = None
            if self._paused:
                self._resume()
            if self._closing:
                await self._close_once_sent()

    async def _answer(self, frame: SocketFrame) -> None:
        give_back, patience = self._frames.give_back, self._listener.patience
        requests = IncomingMessages(frame, self._resume, patience, give_back)
        handler = self._listener.handler(frame.path)
        client = SocketClient(self._greeting.session_id, self._certificate)
        segment = self._memory.segment
        self._call = call = SocketCall(handler, frame.path, requests, self._out, segment, client)
        try:
            await call.run()
        finally:
            requests.drop()

    def check(self, now: float) -> None:
        """Close the connection if a frame has been coming for too long; called now and then.

        Args:
            now: The time of the event loop.
        """
        reader, (completed, since) = self._reader, self._partial
        if not reader.is_partial or reader.completed != completed:
            self._partial = reader.completed, now
        elif now - since > _FRAME_SECONDS:
            self.refuse(f"a frame has not come whole in {_FRAME_SECONDS:g} s")

    async def leave(self) -> None:
        """Begin no more calls, and close the connection once all answers are sent."""
        self._closing = True
        if self._task is None:
            self._pause()
            await self._close_once_sent()
        else:
            await asyncio.wait([self._task])

    async def _close_once_sent(self) -> None:
        with suppress(DeadlineExceededError):
            await self._out.below(0)
        self.close()

    def refuse(self, why: str) -> None:
        """Close the connection because the other end violates the protocol."""
        stranger = not self._greeting.is_over
        LOG.warning("a socket was closed", who=self._who, why=why, stranger=stranger)
        self.close()

    def close(self) -> None:
        """Cancel the call under way and close the socket; a repetition does nothing."""
        if self._closed:
            return
        self._closed = True
        self._patience.cancel()
        self._loop.remove_reader(self._socket)
        self._out.close()
        self._memory.close()
        self._frames.give_back(self._reader.drop())
        self._hang_up()
        if self._task is None:
            self._leave()
        else:
            # A server that stops waits until the cancelled call has ended.
            self._task.add_done_callback(self._leave)
            if self._call is not None:
                self._call.requests.close()
            self._task.cancel()

    def _leave(self, _: object = None) -> None:
        while self._queued:
            self._queued.take()
        self._frames.close()
        self._listener.left(self)

    def _hang_up(self) -> None:
        if self._handshake is None or self._handshake.done():
            return hang_up(self._socket)
        # It waits for the socket, whose number must not be another one's before it has ended.
        self._handshake.add_done_callback(lambda _: hang_up(self._socket))
        self._handshake.cancel()


class _QueuedCalls:
    """The calls that a client has pipelined after the one under way."""

    def __init__(self) -> None:
        self._frames: deque[SocketFrame] = deque()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def are_many(self) -> bool:
        """Whether to stop reading until calls were answered."""
        return len(self._frames) >= _MOST_QUEUED or self._nbytes > WINDOW_BYTES

    def put(self, frame: SocketFrame) -> None:
        """Add a call."""
        self._frames.append(frame)
        self._nbytes += len(frame.message)

    def take(self) -> SocketFrame:
        """Remove and return the next call."""
        frame = self._frames.popleft()
        self._nbytes -= len(frame.message)
        return frame
