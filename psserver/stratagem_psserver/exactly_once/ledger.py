"""Sessions, their leases, and the requests that were applied for them.

This module is pure: time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from stratagem_proto.errors import (
    PermissionDeniedError,
    ResourceExhaustedError,
    SessionLostError,
)
from stratagem_proto.protocol import (
    MOST_SCALARS,
    PING_SECONDS,
    SCALAR_NAME_CHARACTERS,
    check_name,
)
from stratagem_proto.v1.session_pb2 import HeartbeatRequest, Scalar
from stratagem_psserver.exactly_once.counted_steps import CountedSteps
from stratagem_psserver.exactly_once.sessions import Fence, Session, Succession, superseded
from stratagem_rpc.serving.access import name_of
from stratagem_rpc.shares import is_used_up
from stratagem_rpc.whereabouts import MAX_CHARACTERS

MAX_SESSIONS = 65_536

# A connection of a client makes one, and another one takes its place when it breaks.
MAX_ATTENDING = 64

# A heartbeat tells of so many servers and tasks; of more, what is told suffices.
_MOST_AWAITED = 16

# A connection that breaks is made again sooner, unless its process has ended.
_MOMENT_SECONDS = 1.0

# Ended sessions that can be resumed with their numbering.
MAX_REMEMBERED = 10_000


class SessionLedger:
    """All sessions of a server.

    Args:
        lease_seconds: A session ends after this much silence.
        reconnect_seconds: A session whose connection was closed ends after this much silence, if
            that is less than the lease.
        succession: Says which programs are refused; by default none.
        verify_caller: Returns the session that the present call may act for by its credential, or
            raises why it may not; by default each may, and shows the session itself.
        require_reached: Raises if the client of a call, by what it shows, was told of changes that
            the server has lost.

    Attributes:
        verify_caller: The same.
        fence: Says which process of each task acts.
        counted: How far tasks are in the steps that their programs count.
    """

    def __init__(
        self,
        lease_seconds: float,
        reconnect_seconds: float = math.inf,
        succession: Succession | None = None,
        verify_caller: Callable[[bytes], bytes] = bytes,
        require_reached: Callable[[bytes], None] = lambda shown: None,
    ) -> None:
        self.verify_caller, self._require_reached = verify_caller, require_reached
        self._lease = lease_seconds
        self._reconnect = min(reconnect_seconds, lease_seconds)
        self._attended: Counter[bytes] = Counter()
        self._succession = succession or Succession()
        self.fence = Fence()
        self.counted = CountedSteps()
        # When the connection of a session was closed, of those that nothing attends.
        self._cut_off: dict[bytes, float] = {}
        self._open: dict[bytes, Session] = {}
        # Those of processes that are being replaced.
        self._leaving: set[bytes] = set()
        self._ended: OrderedDict[bytes, Session] = OrderedDict()
        self._last_opened = 0

    def open(self, session: Session, now: float) -> Session:
        """Begin a session, or resume the one with that id and its numbering.

        Args:
            session: What its client said of itself.
            now: The time.

        Raises:
            InvalidArgumentError: The task has no valid name.
            PermissionDeniedError: It was opened in another role, or for another task.
            ResourceExhaustedError: Too many sessions are open.
            SupersededError: Another process has taken the place of the client's.
        """
        known = self._admitted(session)
        self.fence.enter(session, self.sessions())
        self._ended.pop(session.id, None)
        self._cut_off.pop(session.id, None)
        if known is None:
            session.opened = self._last_opened = self._last_opened + 1
        else:
            session.numbering, session.opened = known.numbering, known.opened
        session.expires, session.heard, session.requested = now + self._lease, now, now
        self._open[session.id] = session
        return session

    def replace(self, session: Session) -> Sequence[Session]:
        """Admit no more requests of the process whose place that of a session takes.

        Returns:
            The sessions of that process, which are to be ended before the other one is opened.

        Raises:
            As `open`.
        """
        self._admitted(session)
        former = self.fence.replaced_by(session)
        if not former:
            return []
        leaving = [one for one in self._open.values() if one.is_of(session.task, former)]
        self._leaving.update(one.id for one in leaving)
        return leaving

    def _admitted(self, session: Session) -> Session | None:
        """Check that a session may be opened; return what is known of it."""
        if session.task.job:
            check_name(session.task.job, "job")
        if session.id not in self._open:
            self._require_room(session)
        known = self.known(session.id)
        if known is not None and (session.role, session.task) != (known.role, known.task):
            # As another one it might do other things.
            raise PermissionDeniedError(
                f"session {known.id.hex()[:8]} was opened by {known.label}, with the role "
                f"{name_of(known.role)}, and is its own for ever; {session.label} cannot open it "
                f"with the role {name_of(session.role)}. Open a session with another id"
            )
        self.fence.require(session)
        return known

    def _require_room(self, session: Session) -> None:
        def own() -> int:
            return sum(one.label == session.label for one in self._open.values())

        if is_used_up(MAX_SESSIONS, len(self._open), own):
            raise ResourceExhaustedError(
                f"{session.label} has {own()} of the {len(self._open)} sessions that are open on "
                f"this server, and its share is three quarters of what others leave of "
                f"{MAX_SESSIONS}; close those that are not needed"
            )

    def authenticate(self, credential: bytes, now: float) -> Session:
        """Return the session of the present call, as `session`.

        Args:
            credential: What the request shows.
            now: The time.

        Raises:
            PermissionDeniedError: The call may not act for it.
            SessionLostError: It is not open, or the server has lost what it had told the client.
            SupersededError: Another program or process has taken the place of the client's.
        """
        session = self.session(self.verify_caller(credential), now)
        self._require_reached(credential)
        return session

    def session(self, session_id: bytes, now: float) -> Session:
        """Renew the lease of an open session and return the session.

        Raises:
            SessionLostError: No session with that id is open.
            SupersededError: Another program or process has taken the place of the client's.
        """
        session = self._renewed(session_id, now)
        if session_id in self._leaving:
            raise superseded(session)
        if session.program and self._succession.refuses(session.program):
            raise self._succession.refusal()
        session.requested, session.doing, session.awaited = now, "", ()
        return session

    def beat(self, heartbeat: HeartbeatRequest, now: float) -> Session:
        """Note a heartbeat, where the program is that makes no requests, and what it waits for.

        Raises:
            PermissionDeniedError: The call may not act for the session.
            SessionLostError: No session with that id is open.
        """
        session = self._renewed(self.verify_caller(heartbeat.session_id), now)
        session.doing = heartbeat.doing[:MAX_CHARACTERS] or session.doing
        session.awaited = heartbeat.awaited[:_MOST_AWAITED]
        session.waits = heartbeat.waits[:_MOST_AWAITED]
        session.scalars = [
            Scalar(name=one.name[:SCALAR_NAME_CHARACTERS], value=one.value)
            for one in heartbeat.scalars[:MOST_SCALARS]
        ]
        session.pace = heartbeat.pace if heartbeat.HasField("pace") else session.pace
        return session

    def _renewed(self, session_id: bytes, now: float) -> Session:
        session = self._open.get(session_id)
        if session is None:
            raise SessionLostError(_lost(session_id, session_id in self._ended))
        cut_off = session_id in self._cut_off
        session.heard = now
        session.expires = now + (self._reconnect if cut_off else self._lease)
        return session

    def hold_liveness_call(self, session_id: bytes) -> None:
        """Note that a call attends a session, which lasts as long as it does.

        `end_liveness_call` follows.

        Raises:
            SessionLostError: The session is not open.
            ResourceExhaustedError: As many calls attend it as may.
        """
        if session_id not in self._open:
            raise SessionLostError(_lost(session_id, session_id in self._ended))
        if self._attended[session_id] >= MAX_ATTENDING:
            raise ResourceExhaustedError(
                f"{MAX_ATTENDING} calls attend session {session_id.hex()[:8]}, which is the "
                "share of one session; end those of connections that are gone"
            )
        self._attended[session_id] += 1
        self._cut_off.pop(session_id, None)

    def end_liveness_call(self, session_id: bytes, now: float) -> None:
        """Note that a call that attended a session has ended.

        When a process ends, the system closes its connections at once: the session then has only
        the time to reconnect. A connection may also be given up because a ping was not answered,
        for instance while the process is suspended. Then nothing was heard for as long as a ping
        waits, and the session keeps its lease.
        """
        self._attended[session_id] -= 1
        if self._attended[session_id]:
            return
        del self._attended[session_id]
        session = self._open.get(session_id)
        if session is not None and now - session.heard < PING_SECONDS:
            self._cut_off[session_id] = now
            session.expires = min(session.expires, now + self._reconnect)

    def is_heard(self, session_id: bytes, now: float) -> bool:
        """Return whether a client seems to live.

        It does not once its connection was closed for more than a moment, nor once it is silent for
        longer than a healthy one between two signs of life.
        """
        session = self._open.get(session_id)
        if session is None:
            return False
        closed = self._cut_off.get(session_id)
        if closed is not None:
            return now - closed < _MOMENT_SECONDS
        return now - session.heard < PING_SECONDS

    def is_connected(self, session_id: bytes, now: float) -> bool:
        """Return whether a client lives, as far as anybody can tell at this moment."""
        return session_id not in self._cut_off and self.is_heard(session_id, now)

    def opened(self) -> Iterator[Session]:
        """Yield the open sessions."""
        yield from self._open.values()

    def programs(self) -> set[bytes]:
        """Return the programs of open sessions, and the sessions that belong to none."""
        return {session.program or session.id for session in self._open.values()}

    def known(self, session_id: bytes) -> Session | None:
        """Return a session that is open or can be resumed, without renewing its lease."""
        return self._open.get(session_id) or self._ended.get(session_id)

    def opened_as(self, session_id: bytes) -> Session | None:
        """Return an open session, without renewing its lease."""
        return self._open.get(session_id)

    def renew_all(self, now: float) -> None:
        """Renew all leases, after nobody could renew them for a while."""
        for session in self._open.values():
            session.expires, session.heard, session.requested = now + self._lease, now, now

    def sessions(self) -> Iterator[Session]:
        """Yield all sessions that can be resumed: those that have ended, and the open ones."""
        yield from self._ended.values()
        yield from self._open.values()

    def restore(self, sessions: Iterable[Session]) -> None:
        """Add sessions of an earlier run of the server, which clients may resume."""
        for session in sessions:
            self._last_opened = max(self._last_opened, session.opened)
            self._remember(session)

    def close(self, session_id: bytes) -> Session | None:
        """End a session and return it; return None if it was not open."""
        session = self._open.pop(session_id, None)
        self._cut_off.pop(session_id, None)
        self._leaving.discard(session_id)
        if session is not None:
            self._remember(session)
        return session

    def expire(self, now: float) -> list[Session]:
        """End the sessions whose leases have run out, and return them.

        A session does not end while a request of it is being applied.
        """
        ended = [
            session
            for session in self._open.values()
            if session.expires <= now and not session.numbering.is_applying
        ]
        for session in ended:
            self.close(session.id)
        return ended

    def _remember(self, session: Session) -> None:
        self._ended[session.id] = session
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)


def _lost(session_id: bytes, ended: bool) -> str:
    reason = (
        "its lease ran out or it was closed; open it again to go on"
        if ended
        else "the server may have restarted without its state; open a session and "
        "attach again, or restore a checkpoint"
    )
    return f"session {session_id.hex()[:8]} is not known: {reason}"
