"""The events of a session on their way to its client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from functools import partial

from stratagem_proto.serving.rpc_boundary import DirectContext
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.wire.payloads import batches, split

# What need not be sent at once is, with what comes meanwhile, after this time. Updates that take a
# millisecond then cost client and worker half of what they do if each travels alone.
_LINGER_SECONDS = 0.01

# Lines that a function may write before it has to wait for them to be sent.
_LINES = 1_000


class Outbox:
    """Takes events from any thread and sends them in order.

    The thread that puts what is awaited sends all there is, if it may and nothing else is being
    sent. All else is left to the event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._direct: DirectContext | None = None
        self._sending = threading.Lock()
        self._events: deque[pb.WorkEvent] = deque()
        self._begun: dict[int, bool] = {}
        self._filled = asyncio.Event()
        self._calling = False
        self._lingering = False
        self._closed = False
        self._error: Exception | None = None
        self._room = threading.Semaphore(_LINES)

    def write_by(self, direct: DirectContext | None) -> None:
        """Let threads send, from now on.

        Args:
            direct: How; None if they cannot.
        """
        self._direct = direct

    def put(self, *events: pb.WorkEvent, at_once: bool = True) -> None:
        """Send events; not in a thread that may be interrupted.

        Those that are awaited are sent `at_once`, and not with what follows.
        """
        self._events.extend(events)
        if not at_once:
            self._let_linger()
        elif not self._sent():
            self._call()

    def _sent(self) -> bool:
        """Send all there is in this thread; return whether that was possible."""
        if self._direct is None or not self._sending.acquire(blocking=False):
            return False
        try:
            return self._direct.is_clear and self._written(self._direct)
        except Exception as error:
            # What was taken is lost, and so is the session.
            self._soon(partial(self.close, error))
            return True
        finally:
            self._sending.release()

    def _written(self, direct: DirectContext) -> bool:
        for batch in () if self._closed else _batches(self._taken()):
            direct.write_at_once(_encoded(batch))
            self._make_room(batch)
        return True

    def _call(self) -> None:
        if not self._calling:
            self._calling = True
            self._soon(self._called)

    def _let_linger(self) -> None:
        if not self._lingering:
            self._lingering = True
            self._soon(self._linger)

    def _soon(self, action: Callable[[], None]) -> None:
        # A function may end when its worker has stopped already.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def expect(self) -> None:
        """Prepare for events that linger; on the event loop, which they then spare."""
        if not self._lingering:
            self._lingering = True
            self._linger()

    def put_started(self, closure: int) -> None:
        """Tell soon that a function has begun, unless its end is told by then.

        Most that a worker is sent together have ended when the first of them is told.
        """
        self._begun[closure] = True
        self._let_linger()

    def put_output(self, output: pb.Output) -> None:
        """Send what a function wrote; wait while there is too much of that."""
        if not self._closed:
            self._room.acquire()
            self._events.append(pb.WorkEvent(output=output))
            self._call()

    def put_finished(self, finished: pb.Finished, at_once: bool = True) -> None:
        """Send how a function ended, its payload in pieces; as `put`."""
        self._begun.pop(finished.closure, None)
        pieces, finished.payload = split(finished.payload)
        self._put_with(pieces, pb.WorkEvent(finished=finished), at_once)

    def put_sent_back(self, closure: int, payload: bytes) -> None:
        """Send a result that has stayed on the worker."""
        pieces, last = split(payload)
        sent_back = pb.SentBack(closure=closure, payload=last)
        self._put_with(pieces, pb.WorkEvent(sent_back=sent_back))

    def _put_with(self, pieces: Iterable[bytes], event: pb.WorkEvent, at_once: bool = True) -> None:
        parts = (pb.WorkEvent(piece=piece) for piece in pieces)
        self.put(*parts, event, at_once=at_once)

    def close(self, error: Exception | None = None) -> None:
        """Let `messages` end once all is sent, by an error if there is one; on the event loop."""
        if not self._closed:
            self._closed, self._error = True, error
            self._room.release(_LINES)
            self._filled.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what the event loop is to send, at once as much as there is.

        Raises:
            Exception: As given to `close`.
        """
        while self._events or not self._closed:
            await self._filled.wait()
            if not self._closed:
                self._filled.clear()
            with self._sending:
                for batch in _batches(self._taken()):
                    yield _encoded(batch)
                    self._make_room(batch)
        if self._error is not None:
            raise self._error

    def _taken(self) -> list[pb.WorkEvent]:
        # First: the end of one of them may be among the events by now. Or its thread takes it out
        # just now, and tells its end next.
        begun = [one for one in list(self._begun) if self._begun.pop(one, False)]
        events = [self._events.popleft() for _ in range(len(self._events))]
        return [*map(_started, begun), *events]

    def _linger(self) -> None:
        self._loop.call_later(_LINGER_SECONDS, self._called)

    def _called(self) -> None:
        self._calling = self._lingering = False
        self._filled.set()

    def _make_room(self, sent: Iterable[pb.WorkEvent]) -> None:
        for event in sent:
            if event.HasField("output"):
                self._room.release()


def _started(closure: int) -> pb.WorkEvent:
    return pb.WorkEvent(started=pb.Started(closure=closure))


def _batches(events: list[pb.WorkEvent]) -> Iterable[list[pb.WorkEvent]]:
    # Most often there is one, which is not worth a look at its size.
    return (events,) if len(events) == 1 else batches(events)


def _encoded(events: Iterable[pb.WorkEvent]) -> bytes:
    return pb.WorkResponse(events=events).SerializeToString()
