"""The incoming messages of a call, over which its handler iterates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.sockets.frames import WINDOW_BYTES, SocketFrame

Take: TypeAlias = Callable[[bytes | memoryview], None]


class IncomingMessages:
    """An iterator over the messages of a call as they arrive; used on the event loop.

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
        """Pass further messages to a function instead of the iterator.

        The iterator ends with the call, or raises what the function raises. Passing a message to
        the iterator would take two rounds of the event loop.
        """
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

    def _hand_over(self, take: Take, message: bytes | memoryview) -> None:
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

    def __aiter__(self) -> IncomingMessages:
        return self

    async def __anext__(self) -> bytes | memoryview:
        while not self._frames and self._failure is None:
            if self._whole:
                raise StopAsyncIteration
            self._emptied()
            await self._next_arrival()
        if self._failure is not None:
            raise self._failure
        frame = self._frames.popleft()
        self._nbytes -= len(frame.message)
        self._give_back(frame.taken)
        return frame.message

    async def _next_arrival(self) -> None:
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self._arrival, self._patience)
        except asyncio.TimeoutError as error:
            raise DeadlineExceededError(
                f"the next message of the call did not come in {self._patience:g} s; "
                "send the request again, from its beginning"
            ) from error
