"""Conditions that requests wait for on the event loop, until other requests bring them about."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from stratagem_proto.errors import ResourceExhaustedError, StratagemError
from stratagem_proto.v1 import status_pb2 as pb
from stratagem_proto.v1 import waits_pb2
from stratagem_psserver.checkpoint_gate import STEPS, CheckpointGate
from stratagem_psserver.environment import Clock
from stratagem_rpc.serving.figures import SECONDS, Histogram

Outcome = TypeVar("Outcome")


class AwaitedClient(NamedTuple):
    """A client that others wait for.

    Attributes:
        client: The label of its session, for instance "/job:worker/task:3".
        missing: What the others wait for, as in "the contribution of /job:worker/task:3".
    """

    client: str
    missing: str


@dataclass(frozen=True, eq=False)
class Waiter:
    """A request that waits for something that others are to do.

    Attributes:
        client: The label of the waiting client's session.
        subject: What it waits for, in words.
        awaited: Returns the clients that have to act first; none where the server cannot tell.
        counts: Whether it is refused where too many requests of the client wait already.
    """

    client: str
    subject: str
    awaited: Callable[[], Sequence[AwaitedClient]]
    counts: bool = True


@dataclass(frozen=True, eq=False)
class _Wait:
    waiter: Waiter
    reason: str
    since: float


# A status lists no more than these, so that it stays small while a large cluster stands still.
_MOST_TOLD = 100

# The reason of waits for what another request holds.
LOCK = "lock"
_MOMENT_SECONDS = 1.0

# A client has a request or two that wait, for each of its threads. Each takes some memory.
MAX_WAITING = 1_024


class Waits:
    """The requests that wait, by the subject of their condition."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        # In the order in which they came, so that the same events take the same course.
        self._waiting: dict[Hashable, dict[asyncio.Future[None], None]] = {}
        # In the order in which they began.
        self._present: dict[_Wait, None] = {}
        self._by_client: Counter[str] = Counter()
        self._waited = defaultdict[str, Histogram](partial(Histogram, SECONDS))
        self._closed: StratagemError | None = None
        # When a wait of each client ended last; the latest last.
        self._released: dict[str, float] = {}

    async def until(
        self,
        subject: Hashable,
        met: Callable[[], Outcome | None],
        seconds: float,
        waiter: Waiter,
    ) -> Outcome | None:
        """Wait until a condition has an outcome.

        Args:
            subject: Identifies what the condition depends on. Whoever changes it calls `changed`.
            met: Returns the outcome, or None while there is none. An exception ends the wait.
            seconds: The longest wait.
            waiter: The client that waits and those that it waits for, for status and messages.

        Returns:
            The outcome; None if there was none in time.

        Raises:
            ResourceExhaustedError: As many requests of the client wait as may.
        """
        outcome = met()
        if outcome is None and seconds > 0:
            with (
                self._counted(waiter),
                suppress(asyncio.TimeoutError),
                self.noted(_reason(subject), waiter),
            ):
                return await asyncio.wait_for(self._poll(subject, met), seconds)
        return outcome

    async def news(
        self, subject: Hashable, met: Callable[[], Outcome | None], seconds: float
    ) -> Outcome | None:
        """Wait as `until` does, for somebody who holds nobody up, and whom no status tells of."""
        with suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._poll(subject, met), seconds)
        return None

    @contextmanager
    def _counted(self, waiter: Waiter) -> Iterator[None]:
        """Return a context in which a request counts in the share of its client."""
        client = waiter.client
        if waiter.counts and self._by_client[client] >= MAX_WAITING:
            raise ResourceExhaustedError(
                f"{MAX_WAITING} requests of {client} wait on this server, which is the share of "
                f"one client; another one, for {waiter.subject}, is refused. Wait for their "
                "answers, or give those up that are not needed"
            )
        self._by_client[client] += 1
        try:
            yield
        finally:
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]

    @contextmanager
    def noted(self, reason: str, waiter: Waiter) -> Iterator[None]:
        """Return a context in which people see that a client waits.

        Args:
            reason: As in `WaitStatus`.
            waiter: The client, and whom it waits for.
        """
        wait = _Wait(waiter, reason, self.clock())
        self._present[wait] = None
        try:
            yield
        finally:
            del self._present[wait]
            now = self.clock()
            # Requests for one variable wait for each other all the time, for a moment each.
            if reason != LOCK or now - wait.since > _MOMENT_SECONDS:
                self._released.pop(waiter.client, None)
                self._released[waiter.client] = now
                if len(self._released) > _MOST_TOLD:
                    del self._released[next(iter(self._released))]
            self._waited[reason].observe(now - wait.since)

    def released(self, client: str) -> float | None:
        """Return when a wait of a client ended last; None if that is not known any more."""
        return self._released.get(client)

    def report(self) -> Iterator[pb.WaitStatus]:
        """Yield the number of present waits and the durations of past ones, for each reason."""
        present = Counter(wait.reason for wait in self._present)
        for reason in sorted({*present, *self._waited}):
            seconds = self._waited[reason].message()
            yield pb.WaitStatus(reason=reason, waiting=present[reason], seconds=seconds)

    def waiters(self) -> Iterator[waits_pb2.Waiter]:
        """Yield the requests that wait now and the clients that they wait for, longest first."""
        now = self.clock()
        for wait in islice(self._present, _MOST_TOLD):
            waiter = wait.waiter
            yield waits_pb2.Waiter(
                client=waiter.client,
                reason=wait.reason,
                subject=waiter.subject,
                seconds=now - wait.since,
                awaited=[waits_pb2.Awaited(client=c, missing=m) for c, m in waiter.awaited()],
            )

    async def _poll(self, subject: Hashable, met: Callable[[], Outcome | None]) -> Outcome:
        while (outcome := met()) is None:
            if self._closed is not None:
                raise self._closed
            await self._change(subject)
        return outcome

    async def _change(self, subject: Hashable) -> None:
        change = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(subject, {})
        waiting[change] = None
        try:
            await change
        finally:
            waiting.pop(change, None)
            if not waiting and self._waiting.get(subject) is waiting:
                del self._waiting[subject]

    def changed(self, subject: Hashable) -> None:
        """Check the conditions of all requests that wait for this subject."""
        for change in self._waiting.pop(subject, ()):
            if not change.done():
                change.set_result(None)

    def all_changed(self) -> None:
        """Check the conditions of all requests that wait."""
        for subject in list(self._waiting):
            self.changed(subject)

    def close(self, error: StratagemError) -> None:
        """End all waits, present and future, with an error."""
        self._closed = error
        self.all_changed()


def unfinished_steps(gate: CheckpointGate) -> list[AwaitedClient]:
    """Return the clients whose steps have to end before a checkpoint can be taken."""
    return [AwaitedClient(each.label, f"end of step {each.begun}") for each in gate.unfinished()]


# By first word of a subject: the reason of its waits, where that is another word.
_REASONS = {"group": "step", "closure": "turn", STEPS: "checkpoint"}


def _reason(subject: Hashable) -> str:
    """Return the reason of a wait, by its name in `WaitStatus`."""
    word = subject[0] if isinstance(subject, tuple) else subject
    # Subjects that are bytes are ids of sessions, whose requests wait for their turn.
    return _REASONS.get(word, word) if isinstance(word, str) else "turn"


class Attendance:
    """The calls by which clients attend their sessions; used on the event loop."""

    def __init__(self) -> None:
        self._ends = defaultdict[bytes, dict[asyncio.Future[None], None]](dict)
        self._closed = False

    async def until_end(self, session_id: bytes) -> None:
        """Wait until a session ends or the server shuts down."""
        if self._closed:
            return
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends[session_id][end] = None
        try:
            await end
        finally:
            self._ends[session_id].pop(end, None)
            if not self._ends[session_id]:
                del self._ends[session_id]

    def session_ended(self, session_id: bytes) -> None:
        """End the calls that attend a session."""
        for end in self._ends.get(session_id, ()):
            if not end.done():
                end.set_result(None)

    def close(self) -> None:
        """End all calls, present and future."""
        self._closed = True
        for session_id in [*self._ends]:
            self.session_ended(session_id)


_MOST = 10


def listed(names: Sequence[str], separator: str = ", ") -> str:
    """Return the names in one line; of many, the first ones and the number of others."""
    rest = len(names) - _MOST
    more = f" and {rest} more" if rest > 0 else ""
    return separator.join(names[:_MOST]) + more
