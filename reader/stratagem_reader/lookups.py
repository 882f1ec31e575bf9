"""Answering lookups: the sessions of those who ask, and rows of the version that there is."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
import torch

from stratagem_proto.errors import (
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SessionLostError,
    StaleVersionError,
    UnavailableError,
    VersionExpiredError,
)
from stratagem_proto.protocol import (
    MAX_NAME_LENGTH,
    SESSION_ID_BYTES,
    session_name,
    spoken,
)
from stratagem_proto.v1.lookup_pb2 import (
    LookupHeader,
    LookupRequest,
    OpenLookupsRequest,
    OpenLookupsResponse,
    TableKeys,
)
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, OpenSessionResponse, Role, Task
from stratagem_proto.v1.status_pb2 import GetStatusResponse
from stratagem_proto.wire.frames import ChunkView, Frame, encode_frame
from stratagem_proto.wire.placed import encode_placed, kinds_of, layout_of
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import as_bytes, int64_vector, spec_of
from stratagem_reader.pins import Pin
from stratagem_reader.reader import Follower
from stratagem_rpc import tracing
from stratagem_rpc.server_call import ServerCall
from stratagem_rpc.serving.access import Introduced, name_of
from stratagem_rpc.serving.callers import certificate_of_caller, verify_caller
from stratagem_rpc.serving.rpc_boundary import Handler, Make, Rpc
from stratagem_rpc.serving.settings import ServingSettings
from stratagem_rpc.shares import is_used_up
from stratagem_rpc.socket_server.listener import OfferedSockets

MAX_ANSWER_BYTES = 32 << 20
"""The most bytes of rows in one answer."""

# So few keys are found on the event loop; more of them in threads, so that others are answered.
_KEYS_AT_ONCE = 8192

_MOST_THREADS = 4

# For answers that are being made: a version does not change within them.
_ANSWER_SECONDS = 30.0

_LONGEST_WAIT_SECONDS = 60.0

# A session takes about a kilobyte.
MAX_SESSIONS = 16_384


@dataclass(eq=False)
class LookupSession:
    """Somebody who looks up; a `Caller`.

    Attributes:
        name: What the session is known by; nobody learns its id.
        role: What its client is to the cluster.
        task: The client's task; without a job if it has none.
        label: The client in messages.
        expires: When it ends unless something is heard of it, by a monotonic clock.
        hold: What keeps the version that it was answered of last.
    """

    name: bytes
    role: Role
    task: Task
    label: str
    expires: float
    hold: Pin | None = None


class LookupSessions:
    """The sessions of a reader server; on its event loop.

    Args:
        settings: The settings of the server.
        release: Ends a hold.
    """

    def __init__(self, settings: ServingSettings, release: Callable[[Pin], None]) -> None:
        self._settings, self._release = settings, release
        # Those that were silent for longest come first.
        self._open: OrderedDict[bytes, LookupSession] = OrderedDict()

    def open(self, asking: OpenSessionRequest) -> LookupSession:
        """Begin a session, or go on with it.

        Raises:
            InvalidArgumentError: Its id is none.
            PermissionDeniedError: Somebody else has opened it.
            ResourceExhaustedError: Too many are open.
        """
        if len(asking.session_id) != SESSION_ID_BYTES:
            raise InvalidArgumentError(
                f"a session id has {SESSION_ID_BYTES} bytes; this one has {len(asking.session_id)}"
            )
        self.expire()
        name, who = session_name(asking.session_id), Introduced.from_handshake(asking)
        known = self._open.get(name)
        if known is None:
            self._require_room(who.label)
            known = LookupSession(name, who.role, who.task, who.label, 0.0)
            self._open[name] = known
        elif (known.role, known.task) != (who.role, who.task):
            raise PermissionDeniedError(
                f"session {name.hex()[:8]} was opened by {known.label}, with the role "
                f"{name_of(known.role)}, and {who.label} cannot open it with the role "
                f"{name_of(who.role)}; open one with another id"
            )
        self._renew(known)
        return known

    def _require_room(self, label: str) -> None:
        def own() -> int:
            return sum(one.label == label for one in self._open.values())

        if len(self._open) >= MAX_SESSIONS or (
            label != "a program without a task" and is_used_up(MAX_SESSIONS, len(self._open), own)
        ):
            raise ResourceExhaustedError(
                f"{len(self._open)} sessions are open on {self._settings.label}, {own()} of them "
                f"of {label}, and there may be {MAX_SESSIONS}; let programs look up through one "
                "Reader each, or start more servers"
            )

    def _renew(self, session: LookupSession) -> None:
        session.expires = time.monotonic() + self._settings.lease_seconds
        self._open.move_to_end(session.name)

    def known(self, shown: bytes) -> LookupSession | None:
        """Return an open session, whether or not the present call may act for it."""
        return self._open.get(session_name(shown))

    def authenticate(self, shown: bytes) -> LookupSession:
        """Return the session of the present call.

        Raises:
            PermissionDeniedError: The call may not act for it.
            SessionLostError: It is not open.
        """
        session = self._open.get(verify_caller(shown, self._settings))
        if session is None:
            raise SessionLostError(
                f"{self._settings.label} does not know the session, which has ended, or is of "
                "another server or an earlier run of it; open another one"
            )
        self._renew(session)
        return session

    def expire(self) -> None:
        """End the sessions of which nothing was heard for long; called now and then."""
        now = time.monotonic()
        while self._open and (oldest := next(iter(self._open.values()))).expires <= now:
            self.end_hold(oldest)
            del self._open[oldest.name]

    def end_hold(self, session: LookupSession) -> None:
        """Let the version change that a session has held."""
        if session.hold is not None:
            self._release(session.hold)
            session.hold = None

    def all(self) -> Iterable[LookupSession]:
        """Return those that are open."""
        return self._open.values()


class Lookups:
    """The LookupService of a server, about what a `Follower` has; on the server's event loop.

    Args:
        settings: The settings of the server.
        follower: Where the rows are.
        incarnation: Which run of the server it is.
        max_age: The most seconds since a version was published that is answered of.
        hold_seconds: The most seconds for which a session may keep a version.

    Attributes:
        sessions: Who asks.
        looked_up: How many rows were answered with.
        offered: The sockets that clients may use; None for none.
    """

    def __init__(
        self,
        settings: ServingSettings,
        follower: Follower,
        incarnation: bytes,
        max_age: float | None,
        hold_seconds: float,
    ) -> None:
        self._settings, self._follower, self._incarnation = settings, follower, incarnation
        self._max_age, self._hold_seconds = max_age, hold_seconds
        self.sessions = LookupSessions(settings, follower.pins.release)
        self.looked_up = 0
        self.offered: OfferedSockets | None = None
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "stratagem-lookups")
        self._arrivals: set[asyncio.Future[None]] = set()

    def methods(self) -> dict[str, Make]:
        """Return what makes the handlers of the service."""
        return {"OpenLookups": self._open_handler, "Lookup": self._lookup_handler}

    def close(self) -> None:
        """End the threads; what they do ends by itself."""
        self._threads.shutdown(wait=False)

    # Sessions.

    def _open_handler(self, rpc: Rpc) -> Handler:
        async def handle(data: bytes, call: ServerCall) -> bytes:
            async with rpc.crossing(call) as crossing:
                rpc.require_sender(data)
                request = OpenLookupsRequest.FromString(data)
                await crossing.admit(request)
                return self._opened(request.asking).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)

    def _opened(self, asking: OpenSessionRequest) -> OpenLookupsResponse:
        self.sessions.open(asking)
        settings, shown = self._settings, certificate_of_caller(self._settings)
        return OpenLookupsResponse(
            session=OpenSessionResponse(
                **spoken(),
                incarnation=self._incarnation,
                task=Task(job=settings.job, index=settings.task),
                lease_seconds=settings.lease_seconds,
                frame_sockets=self.offered.to(asking.session_id, shown) if self.offered else None,
            )
        )

    def describe(self, status: GetStatusResponse) -> None:
        """Describe the sessions for people."""
        now = time.monotonic()
        for each in self.sessions.all():
            silent = now - each.expires + self._settings.lease_seconds
            status.sessions.add(
                digest=each.name.hex()[:8], role=each.role, task=each.task, silent_seconds=silent
            )

    # Lookups.

    def _lookup_handler(self, rpc: Rpc) -> Handler:
        async def handle(data: bytes, call: ServerCall) -> bytes:
            async with rpc.crossing(call) as crossing:
                rpc.require_sender(data)
                request = LookupRequest.FromString(data)
                await crossing.admit(request)
                with tracing.answering(request, rpc.task):
                    return await self._answer(request, call.segment)

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _answer(self, request: LookupRequest, segment: Segment | None) -> bytes:
        session = self.sessions.authenticate(request.session_id)
        if request.hold_seconds < 0:
            self.sessions.end_hold(session)
        count = _count_of(request.tables)
        if request.min_version > self._follower.replica.number:
            await self._await_version(request.min_version, request.wait_seconds)
        if count <= _KEYS_AT_ONCE and (pin := self._held(_ANSWER_SECONDS)) is not None:
            answer = self._made(pin, request, session, segment)
        else:
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(
                self._threads, self._made_later, request, session, segment
            )
        self.looked_up += count
        return answer

    def _held(self, seconds: float) -> Pin | None:
        return self._follower.pins.hold(lambda: self._follower.replica.number, seconds)

    def _made_later(
        self, request: LookupRequest, session: LookupSession, segment: Segment | None
    ) -> bytes:
        """Make an answer in a thread, once a version that is being put in place is there."""
        pin = self._follower.pins.await_hold(lambda: self._follower.replica.number, _ANSWER_SECONDS)
        return self._made(pin, request, session, segment)

    def _made(
        self,
        pin: Pin,
        request: LookupRequest,
        session: LookupSession,
        segment: Segment | None,
    ) -> bytes:
        """Make an answer of the version that a pin holds, which ends with it."""
        try:
            header = LookupHeader(version=pin.version, age_ms=self._age_ms(pin.version, request))
            tensors = self._rows(request.tables)
            # Else a later version may have come between them.
            pin.require_valid()
            header.tensors.extend(map(spec_of, tensors))
            if request.hold_seconds > 0:
                header.held_seconds = self._hold(request.hold_seconds, session)
            return _encoded(header, tensors, segment)
        finally:
            self._follower.pins.release(pin)

    def _age_ms(self, version: int, request: LookupRequest) -> int:
        """Check that a version may be answered of, and return its age."""
        follower, label = self._follower, self._settings.label
        if isinstance(follower.source_error, InternalError):
            raise follower.source_error
        if not version or not follower.replica.is_intact:
            raise UnavailableError(
                f"{label} has no version of {follower.source.name!r} yet{self._why()}; ask again "
                "in a moment"
            )
        age = follower.age
        if self._max_age is not None and age > self._max_age:
            raise StaleVersionError(
                f"version {version} of {label} was published {age:.1f} s ago, and it answers for "
                f"{self._max_age:g} s{self._why()}; see that {follower.source.name!r} is published "
                "and can be reached, or give --max-age more"
            )
        if request.version and request.version != version:
            raise VersionExpiredError(
                f"{label} has version {version} and not {request.version} (any more), and it keeps "
                "one; read again, all of the version that there is then"
            )
        return int(age * 1000)

    def _why(self) -> str:
        error = self._follower.source_error
        return f" ({error})" if error else ""

    def _rows(self, tables: Sequence[TableKeys]) -> list[torch.Tensor]:
        replica = self._follower.replica
        forms = [replica.row_form(each.table) for each in tables]
        counts = [len(each.keys) // 8 for each in tables]
        nbytes = sum(count * form.nbytes for count, form in zip(counts, forms, strict=True))
        if nbytes > MAX_ANSWER_BYTES:
            raise InvalidArgumentError(
                f"{sum(counts)} rows have {nbytes} bytes, and an answer may have "
                f"{MAX_ANSWER_BYTES}; ask for fewer at a time, from the second time on for the "
                "version of the first answer"
            )
        return [
            replica.rows(each.table, int64_vector(each.keys), form.default(each.missing))
            for each, form in zip(tables, forms, strict=True)
        ]

    def _hold(self, seconds: float, session: LookupSession) -> float:
        """Keep the version for a session, while another pin holds it; return for how long."""
        pins, granted = self._follower.pins, min(seconds, self._hold_seconds)
        if granted <= 0 or pins.is_awaited_for > self._hold_seconds:
            # Others have held it for long enough, one after the other.
            return 0.0
        pin = pins.hold(lambda: self._follower.replica.number, granted, even_if_closed=True)
        self.sessions.end_hold(session)
        session.hold = pin
        return granted if pin is not None else 0.0

    # Waiting for versions.

    async def _await_version(self, version: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS)
        while (present := self._follower.replica.number) < version:
            left = give_up_at - loop.time()
            if left <= 0:
                raise StaleVersionError(
                    f"{self._settings.label} has version {present or 'none'}, and {version} was "
                    f"asked for{self._why()}; ask again later, or allow a longer wait"
                )
            arrival = loop.create_future()
            self._arrivals.add(arrival)
            try:
                await asyncio.wait([arrival], timeout=left)
            finally:
                self._arrivals.discard(arrival)

    def arrived(self) -> None:
        """Let those go on who wait for a version."""
        for arrival in self._arrivals:
            if not arrival.done():
                arrival.set_result(None)


def _count_of(tables: Sequence[TableKeys]) -> int:
    """Return how many keys a request has; raise unless they are whole numbers."""
    nbytes = 0
    for each in tables:
        if len(each.keys) % 8 or len(each.table) > MAX_NAME_LENGTH:
            raise InvalidArgumentError(
                f"{len(each.keys)} bytes are no keys of {each.table[:80]!r}: each has 8"
            )
        nbytes += len(each.keys)
    return nbytes // 8


def _encoded(
    header: LookupHeader, tensors: Sequence[torch.Tensor], segment: Segment | None
) -> bytes:
    if segment is not None:
        layout = layout_of(kinds_of(tensors))
        if layout.room <= segment.nbytes:
            return encode_placed(header.SerializeToString(), tensors, segment, layout)
    chunks = [ChunkView(number, 0, as_bytes(each)) for number, each in enumerate(tensors)]
    return encode_frame(Frame(header, [each for each in chunks if len(each.data)]))
