"""The threads that show servers that this process lives, and see that servers do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from stratagem._core.waiting import waits_for_tasks
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.connection import Connection
from stratagem._ps_client.session import ServerSession
from stratagem_proto.errors import CancelledError, StratagemError
from stratagem_proto.protocol import PING_SECONDS
from stratagem_proto.v1.waits_pb2 import Awaited, Waiter

_LOOK_SECONDS = 0.25


class PrimaryWatch:
    """The thread that sees that a primary answers no more, and that another one serves.

    The heartbeat cannot: it waits itself for the server that is silent.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = [each for each in connections if each.is_replicated]
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start it, if a server has replicas; may be called once."""
        if self._connections:
            threading.Thread(target=self._run, name="stratagem-primaries", daemon=True).start()

    def stop(self) -> None:
        """Stop it; do not wait for a look under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            for connection in self._connections:
                # Failures are left to the next request, which reports them.
                with suppress(StratagemError):
                    connection.follow()


# Between looks at a group that has not met its servers yet.
_EARLY_SECONDS = 0.2

# Less than a ping waits for its answer, by which servers tell a process that ended from one that is
# silent.
_LONGEST_SECONDS = PING_SECONDS * 0.6

# A program that trains sends its next request sooner, and tells by that.
_IDLE_SECONDS = 0.025

# Of more tasks, what is told suffices to find the cause.
_MOST_AWAITED = 16


class Heartbeat:
    """The thread that renews the leases of a group's sessions, and holds their liveness calls.

    It also tells a server which step was the last when nothing else is sent, so that a checkpoint
    need not wait for the next one.

    Attributes:
        idle: Called when a step has ended and none begins soon.
    """

    def __init__(
        self, connections: Sequence[Connection], steps: CheckpointSteps, name: str
    ) -> None:
        self._connections, self._steps, self._name = connections, steps, name
        self.idle: Callable[[], None] = lambda: None
        self._watch = PrimaryWatch(connections)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="stratagem-heartbeat", daemon=True
                )
                self._thread.start()
                self._watch.start()

    def stop(self) -> None:
        """Stop it; do not wait for a heartbeat under way."""
        self._watch.stop()
        self._stopped.set()
        self._steps.wake()

    def _run(self) -> None:
        due = time.monotonic() + self._interval()
        self._trim_due = time.monotonic() + self._third_of_lease()
        while not self._stopped.is_set():
            look = min(due, time.monotonic() + self._glance())
            ended = self._steps.wait_for_end(max(look - time.monotonic(), 0))
            # Failures are left to the next request, which reports them.
            with suppress(CancelledError):
                if ended:
                    self._tell_last_step()
                for connection in self._connections:
                    connection.meet()
                if not self._hold_liveness_calls():
                    due = time.monotonic()
                if time.monotonic() >= due:
                    due = time.monotonic() + self._interval()
                    self._renew_leases()

    def _hold_liveness_calls(self) -> bool:
        """Return whether all servers saw until now that this process lives."""
        held = []
        for connection in self._connections:
            try:
                held.append(connection.hold_liveness_call())
            except StratagemError:
                # For instance, certificates cannot be read now; the next request that needs them
                # says so.
                held.append(False)
        return all(held)

    def _tell_last_step(self) -> None:
        step, begun = self._steps.unreported_step(), self._steps.begun
        if self._stopped.wait(_IDLE_SECONDS):
            return
        if self._steps.begun == begun:
            self.idle()
        if step and self._steps.unreported_step() >= step:
            # One server is enough: the task that takes a cut asks all of them.
            beats = (connection.renew_lease() for connection in self._connections)
            with suppress(StratagemError):
                for beat in islice(filter(None, beats), 1):
                    beat.result()

    def _renew_leases(self) -> None:
        # All at once: one server that is away must not cost the leases of others.
        answers = (connection.awaited() for connection in self._connections)
        awaited = [answer for answer in answers if answer is not None]
        waits = [*_waits(self._name)]
        beats = [connection.renew_lease(awaited, waits) for connection in self._connections]
        self._trim()
        for beat in filter(None, beats):
            with suppress(StratagemError):
                beat.result()

    def _trim(self) -> None:
        """Give memory back that was not used for a third of a lease."""
        now = time.monotonic()
        if now >= self._trim_due:
            self._trim_due = now + self._third_of_lease()
            for connection in self._connections:
                connection.route.trim()

    def _glance(self) -> float:
        """Return seconds until servers may be told anew that this process lives."""
        return _third(session.reconnect_seconds for session in self._sessions())

    def _sessions(self) -> Iterator[ServerSession]:
        return filter(None, (connection.session for connection in self._connections))

    def _interval(self) -> float:
        """Return seconds to the next heartbeat; few before the first lease is known."""
        return min(self._third_of_lease(), _LONGEST_SECONDS)

    def _third_of_lease(self) -> float:
        return _third(session.lease_seconds for session in self._sessions())


def _waits(name: str) -> Iterator[Waiter]:
    """Yield the waits of a task for others, of which servers tell who asks what is stuck."""
    now = time.monotonic()
    for wait in waits_for_tasks():
        # Other strategies of this process may be other tasks.
        if wait.awaited and (wait.who == name or not wait.who.startswith("/job:")):
            tasks = wait.awaited.tasks()[:_MOST_AWAITED]
            yield Waiter(
                client=name,
                reason=wait.awaited.reason,
                subject=wait.awaited.subject,
                seconds=now - wait.began,
                awaited=[Awaited(client=t, missing=m, seconds=s) for t, m, s in tasks],
            )


def _third(times: Iterable[float]) -> float:
    return min((time / 3 for time in times if time), default=_EARLY_SECONDS)
