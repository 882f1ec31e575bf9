"""One parameter server: a channel, a session, and requests that are applied once."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any

from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.names import next_closure_key
from stratagem._ps_client.pending import Pending, SurvivedRequests
from stratagem._ps_client.requests.request import Request, Result
from stratagem._ps_client.route import ServerRoute, TaskDirectory, forked_error, restarted_error
from stratagem._ps_client.session import (
    Identity,
    LivenessCall,
    ServerSession,
    farewell,
    heartbeat,
    opened,
    opening,
    reopening,
)
from stratagem._ps_client.transport import Cancellable, Style
from stratagem_proto.errors import SessionLostError, StratagemError
from stratagem_proto.v1.session_pb2 import (
    AwaitedAnswer,
    HeartbeatResponse,
    OpenSessionResponse,
    RequestKey,
    Task,
)
from stratagem_proto.v1.waits_pb2 import Waiter
from stratagem_rpc import tracing
from stratagem_rpc.channel import Deadlines
from stratagem_rpc.whereabouts import whereabouts


class Permit:
    """The permit to change a server, until it is released, revoked or dropped.

    Attributes:
        thread: The thread that holds it; 0 while none does.
        call: The call that was made under it and is cancelled with it.
    """

    def __init__(self, lock: MutationLock) -> None:
        self._lock: Callable[[], MutationLock | None] = weakref.ref(lock)
        self.thread = 0
        self.call: Cancellable | None = None

    def release(self) -> None:
        """Let the next request have the permit; do nothing if it was revoked."""
        if (lock := self._lock()) is not None:
            self.call, self.thread = None, 0
            lock.free.put(self)

    def revoke(self) -> None:
        """Cancel the call, and have another permit take the place of this one."""
        lock, self._lock = self._lock(), lambda: None
        call, self.call = self.call, None
        if call is not None:
            call.cancel()
        if lock is not None:
            lock.issue()

    def __del__(self) -> None:
        self.revoke()


class MutationLock:
    """Hands out the only permit. Thread-safe.

    Attributes:
        free: The permit, while no thread holds it.
        last: A weak reference to the permit that was issued last.
    """

    def __init__(self) -> None:
        self.free: SimpleQueue[Permit] = SimpleQueue()
        self.issue()

    def issue(self) -> None:
        """Make a new permit, because the last one was revoked."""
        permit = Permit(self)
        self.last = weakref.ref(permit)
        self.free.put(permit)

    def acquire(self) -> Permit:
        """Wait for the permit and return it; the caller holds it from now on."""
        thread = get_ident()
        try:
            permit = self.free.get_nowait()
        except Empty:
            self.release_interrupted()
            permit = self.free.get()
        permit.thread = thread
        return permit

    def release_interrupted(self) -> None:
        """Revoke the permit that the calling thread still holds, if it holds one.

        The thread was interrupted while it held the permit: the traceback keeps the permit for as
        long as the exception is handled or kept.
        """
        last = self.last()
        if last is not None and last.thread == get_ident():
            last.revoke()


_LOG = logging.getLogger("stratagem")

_FAREWELL_SECONDS = 1.0


class Connection:
    """The connection of this process to one server. Thread-safe.

    Nothing is sent before the first request. Mutations are numbered and go one at a time, except
    for those that are pipelined; other requests may overlap them.

    Attributes:
        route: The way to the server.
        survived: What the server has carried out for this process.
        deadlines: How long its calls may take.
        needs_all: Whether this process cannot go on without what the server had applied, whatever
            its identity says.
    """

    def __init__(
        self,
        task: int,
        address: str,
        identity: Identity,
        deadlines: Deadlines,
        steps: CheckpointSteps | None = None,
        directory: TaskDirectory | None = None,
    ) -> None:
        """Describe the server; do not connect.

        The address may list those of its replicas. Where it is now is said by `directory`; by
        default it stays where it was.
        """
        self.route = ServerRoute(
            task, address, directory or TaskDirectory(task, identity), identity.token
        )
        self.survived = SurvivedRequests()
        self.peer = self.route.peer
        self.deadlines = deadlines
        self.needs_all: Callable[[], bool] = bool
        self._given = identity
        self._steps = steps or CheckpointSteps()
        self._process = os.getpid()
        self._session: ServerSession | None = None
        self._expected = b""
        # Why the server cannot be gone on with; "" while it can.
        self._lost = ""
        self._opening = threading.Lock()
        self._mutations = MutationLock()
        self._liveness = LivenessCall()
        # The thread that made the last request, and whether it was since the last heartbeat.
        self._sender = 0
        self._has_sent = False
        self._server = Task(job="ps", index=task)
        # The last request, whose tensors nobody keeps for this, and when it was sent.
        self._last: Callable[[], Pending[Any] | None] = lambda: None
        self._sent_at = 0.0

    @property
    def _identity(self) -> Identity:
        """What to tell the server about this process now."""
        outlives = self._given.outlives_servers and not self.needs_all()
        return replace(self._given, outlives_servers=outlives)

    @property
    def session(self) -> ServerSession | None:
        return self._session

    @property
    def run(self) -> bytes:
        """The run of the server process that the session is with; empty for none."""
        return self._session.incarnation if self._session else b""

    def act_for(self, program: bytes) -> None:
        """Belong to a program from the first session on."""
        self._given = replace(self._given, program=program)

    def expect(self, run: bytes) -> None:
        """Take the server for lost if another run of it opens the first session.

        A process that learns of variables from another one could not tell otherwise whether the
        server has been restarted since.
        """
        self._expected = run

    @property
    def name(self) -> str:
        return self._given.name

    def call(self, request: Request[Result]) -> Result:
        """Send a request and wait for its result; raise as `start` and `result`."""
        try:
            return self.start(request, style=Style.AWAITED).result()
        except BaseException:
            if request.mutates:
                self.release_interrupted()
            raise

    def release_interrupted(self) -> None:
        """Let others change the server after this thread was interrupted in that."""
        self._mutations.release_interrupted()

    def start(self, request: Request[Result], style: Style = Style.SENT) -> Pending[Result]:
        """Send a request. Wait while another mutation is under way, if it is one.

        Raises:
            StratagemError: The server could not be reached, or refused the handshake.
            SessionLostError: The server was restarted since the first request.
            ForkedProcessError: This process was forked from the one that connected.
            CancelledError: The connection is closed.
        """
        # A thread that held the lock when this process was forked does not release it here.
        self._require_usable()
        if not request.mutates:
            session = self._session or self._first_opened()
            return self._sent(request, session.key(self._steps), style)
        permit = self._mutations.acquire()
        try:
            session = self._session or self._first_opened()
            pending = self._sent(request, self._next_key(session, request), style, permit.release)
        except BaseException:
            permit.revoke()
            raise
        permit.call = pending.attempt.call
        return pending

    def pipeline(self, request: Request[Result]) -> Pending[Result]:
        """Send a small mutation; others may follow before its result is asked for.

        Results are to be asked for in the order of sending. Raises as `start`.
        """
        self._require_usable()
        permit = self._mutations.acquire()
        try:
            session = self._session or self._first_opened()
            key = self._next_key(session, request)
            on_outcome = partial(session.note_outcome, key.sequence)
            pending = self._sent(request, key, Style.PIPELINED, on_outcome)
            session.pipelined()
        except BaseException:
            permit.revoke()
            raise
        permit.release()
        return pending

    def _next_key(self, session: ServerSession, request: Request[Any]) -> RequestKey:
        counted = self._steps.counted(self.peer, request)
        return session.next_key(self._steps, next_closure_key(self.peer), counted)

    def _sent(
        self,
        request: Request[Result],
        key: RequestKey,
        style: Style,
        on_outcome: Callable[[], None] = lambda: None,
    ) -> Pending[Result]:
        self._sender, self._has_sent = threading.get_ident(), True
        span = tracing.sending(request.method, self.peer)
        try:
            if span is not None:
                span.mark(key)
                on_outcome = span.before(on_outcome)
            request.stamp(key)
            self._sent_at = time.monotonic()
            pending = Pending(self, request, self.deadlines, on_outcome, style)
        except BaseException:
            if span is not None:
                span.end()
            raise
        self._last = weakref.ref(pending)
        return pending

    def open(self) -> ServerSession:
        """Return the session, after the handshake if there is none; as `start`."""
        self._require_usable()
        return self._session or self._first_opened()

    def acknowledge(self, request: Request[Result]) -> None:
        """Tell with a repeated mutation which ones need no answer any more.

        A server that went back may not know of what was answered meanwhile.
        """
        if self._session is not None:
            request.acknowledge(self._session.acknowledged)

    def note_reached(self, reached: bytes, shown: bytes) -> None:
        """Note how far the server had come when it answered a request that showed something."""
        if self._session is not None:
            self._session.note_reached(reached, shown)

    @property
    def reached(self) -> bytes:
        """How far the server had come when it answered last; b"" if it tells nothing."""
        return self._session.reached if self._session else b""

    def note_heard(self, reached: bytes) -> None:
        """Note how far the server had come when it answered another process."""
        if self._session is not None:
            self._session.note_heard(reached)

    def resume(self) -> None:
        """Open the session again after the server has ended it.

        Raises:
            SessionLostError: It cannot go on, because the server was restarted, or has lost what it
                had answered.
            StratagemError: The server could not be reached, or refused the handshake.
        """
        session = self._session
        if session is not None:
            try:
                answer = self._opened_by(opening(self._identity, session), knows_run=True)
            except SessionLostError as error:
                # Whatever the consistency: versions that this process knows would mean others.
                self._lost = error.message
                raise
            if session.is_forgotten(answer):
                self._require_restored(answer)
            session.continues(answer)
            self.route.learn(answer.frame_sockets)
            self.hold_liveness_call()
        self._require_usable()

    def _opened_by(
        self, request: Request[OpenSessionResponse], knows_run: bool
    ) -> OpenSessionResponse:
        """Shake hands until a run of the server has opened the session.

        Args:
            request: The first handshake.
            knows_run: Whether this process counts on what the run that it names has.
        """
        answer = Pending(self, request, self.deadlines).result()
        while (again := reopening(request, answer)) is not None:
            if knows_run:
                self._require_restored(answer)
            request, answer = again, Pending(self, again, self.deadlines).result()
        return answer

    def _require_restored(self, answer: OpenSessionResponse) -> None:
        if not (answer.restored and self._identity.outlives_servers):
            self._lost = restarted_error(self.peer).message
        self._require_usable()
        _LOG.warning(
            "%s was restarted and went back to its last checkpoint; this program goes "
            "on without what the server had applied since",
            self.peer,
        )

    def has_room_for(self, request: Request[Result]) -> bool:
        """Return whether the server could take the request if it had no other."""
        staged = request.request_nbytes + request.derived_nbytes
        nbytes = max(staged, request.response_nbytes)
        return self._session is None or nbytes <= self._session.max_request_bytes

    def hold_liveness_call(self) -> bool:
        """Have the server see that this process lives; whether it could until now."""
        session = self._session
        if session is None or self._lost:
            return True
        return self._liveness.hold(self.route.address, self.route.expected, session.credential)

    @property
    def is_replicated(self) -> bool:
        return self.route.is_replicated

    def follow(self) -> None:
        """Go to another replica if the present one answers nothing and that one serves.

        Raises:
            StratagemError: It serves, and could not be reached.
        """
        self.route.look(time.monotonic())
        self._shake_hands()

    def meet(self) -> None:
        """Shake hands where the task has moved to, so that calls go by the best way there.

        A failure is left to the next request, which reports it.
        """
        if self.route.has_moved:
            with suppress(StratagemError):
                self._shake_hands()

    def _shake_hands(self) -> None:
        session = self._session
        if session is not None and not self.route.is_met and not self._lost:
            request = opening(self._identity, session)
            answer = Pending(self, request, Deadlines(_FAREWELL_SECONDS, connect=0)).result()
            if reopening(request, answer) is None and not session.is_forgotten(answer):
                self.route.learn(answer.frame_sockets)
                self.hold_liveness_call()

    def awaited(self) -> AwaitedAnswer | None:
        """Return which answer of the server a thread waits for; None if none does."""
        last, seconds = self._last(), time.monotonic() - self._sent_at
        if last is None or not last.is_awaited:
            return None
        return AwaitedAnswer(server=self._server, method=last.method, seconds=seconds)

    def renew_lease(
        self, awaited: Sequence[AwaitedAnswer] = (), waits: Sequence[Waiter] = ()
    ) -> Pending[HeartbeatResponse] | None:
        """Tell the server that this process lives, if there is a session; raise as `pipeline`.

        Args:
            awaited: The answers that it waits for, of any server.
            waits: What it waits for of other tasks.
        """
        session = self._session
        if session is None or self._lost:
            return None
        # The thread that waits for one server renews no other's lease meanwhile.
        patience = min(session.lease_seconds, 2 * session.reconnect_seconds) / 3
        has_sent, self._has_sent = self._has_sent, False
        doing = "" if has_sent else whereabouts(self._sender)
        beat = heartbeat(session, self._steps, doing, awaited, waits)
        return Pending(self, beat, Deadlines(call=patience, connect=0))

    def close(self) -> None:
        """End the session; requests under way fail. May be called again."""
        if os.getpid() != self._process or self.route.closed.is_set():
            return
        with suppress(StratagemError):
            if (session := self._session) is not None and not self._lost:
                deadlines = Deadlines(_FAREWELL_SECONDS, connect=0)
                # Of a step of the program that an error has ended, a part may be missing.
                if self._steps.program_step is None and self._steps.unreported_step():
                    beat = heartbeat(session, self._steps, "", (), ())
                    Pending(self, beat, deadlines).result()
                Pending(self, farewell(session), deadlines).result()
        self.route.close()
        self._liveness.close()

    def _first_opened(self) -> ServerSession:
        with self._opening:
            if self._session is None:
                request = opening(self._identity, run=self._expected)
                answer = self._opened_by(request, knows_run=bool(self._expected))
                session = opened(request, answer, self.peer, self._identity.token)
                self.route.require_all(answer.replicas)
                self.route.learn(answer.frame_sockets)
                self._session = session
                self.hold_liveness_call()
            return self._session

    def _require_usable(self) -> None:
        if os.getpid() != self._process:
            raise forked_error(self.peer, self._process)
        if self._lost:
            raise SessionLostError(self._lost)
