"""A buffer of the bytes that a non-blocking socket could not send yet."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.sockets.frames import FrameKind, parts
from stratagem_proto.sockets.streams import Piece

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
    def together(self) -> Iterator[None]:
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
