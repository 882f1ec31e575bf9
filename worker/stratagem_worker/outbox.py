"""The events of a session on their way to its client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from stratagem_proto.errors import StratagemError
from stratagem_proto.payloads import batches, split
from stratagem_proto.v1 import worker_pb2 as pb

# What need not be sent at once is, with what comes meanwhile, after this time. Updates
# that take a millisecond then cost client and worker half of what they do if each
# travels alone.
_LINGER_SECONDS = 0.005

# Lines that a function may write before it has to wait for them to be sent.
_LINES = 1_000


class Outbox:
    """Takes events from any thread and gives them to the event loop, in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[pb.WorkEvent] = deque()
        self._filled = asyncio.Event()
        self._calling = False
        self._lingering = False
        self._closed = False
        self._error: StratagemError | None = None
        self._room = threading.Semaphore(_LINES)

    def put(self, *events: pb.WorkEvent, at_once: bool = True) -> None:
        """Sends events.

        Args:
            events: What happened.
            at_once: Whether they are awaited, and not to be sent with what follows.
        """
        self._events.extend(events)
        # A function may end when its worker has stopped already.
        with suppress(RuntimeError):
            if at_once and not self._calling:
                self._calling = True
                self._loop.call_soon_threadsafe(self._called)
            elif not at_once and not self._lingering:
                self._lingering = True
                self._loop.call_soon_threadsafe(self._linger)

    def expect(self) -> None:
        """Prepares for events that linger; on the event loop, which they then spare."""
        if not self._lingering:
            self._lingering = True
            self._linger()

    def put_output(self, output: pb.Output) -> None:
        """Sends what a function wrote; waits while there is too much of that."""
        if not self._closed:
            self._room.acquire()
            self.put(pb.WorkEvent(output=output))

    def put_finished(self, finished: pb.Finished, at_once: bool = True) -> None:
        """Sends how a function ended, its payload in pieces; as `put`."""
        pieces, finished.payload = split(finished.payload)
        self._put_with(pieces, pb.WorkEvent(finished=finished), at_once)

    def put_sent_back(self, closure: int, payload: bytes) -> None:
        """Sends a result that has stayed on the worker."""
        pieces, last = split(payload)
        sent_back = pb.SentBack(closure=closure, payload=last)
        self._put_with(pieces, pb.WorkEvent(sent_back=sent_back))

    def _put_with(
        self, pieces: Iterable[bytes], event: pb.WorkEvent, at_once: bool = True
    ) -> None:
        parts = (pb.WorkEvent(piece=piece) for piece in pieces)
        self.put(*parts, event, at_once=at_once)

    def close(self, error: StratagemError | None = None) -> None:
        """Lets `batches` end once all is sent; on the event loop.

        Args:
            error: What it then raises.
        """
        if not self._closed:
            self._closed, self._error = True, error
            self._room.release(_LINES)
            self._filled.set()

    async def batches(self) -> AsyncIterator[list[pb.WorkEvent]]:
        """What is to be sent, at once as much as there is.

        Raises:
            StratagemError: As given to `close`.
        """
        while self._events or not self._closed:
            await self._filled.wait()
            if not self._closed:
                self._filled.clear()
            events = [self._events.popleft() for _ in range(len(self._events))]
            for batch in batches(events):
                yield batch
                self._make_room(batch)
        if self._error is not None:
            raise self._error

    def _linger(self) -> None:
        self._loop.call_later(_LINGER_SECONDS, self._called)

    def _called(self) -> None:
        self._calling = self._lingering = False
        self._filled.set()

    def _make_room(self, sent: Iterable[pb.WorkEvent]) -> None:
        for event in sent:
            if event.HasField("output"):
                self._room.release()
