"""The RPCs that keep sessions, barriers, scheduled functions and the place of the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from stratagem_proto.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from stratagem_proto.protocol import (
    MAX_CHUNK_BYTES,
    SESSION_ID_BYTES,
    session_name,
    spoken,
)
from stratagem_proto.v1 import closure_pb2, draws_pb2, succession_pb2
from stratagem_proto.v1 import session_pb2 as pb
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_psserver.data_ledgers import Function
from stratagem_psserver.exactly_once.closures import EndedClosures, Requester
from stratagem_psserver.exactly_once.sessions import Session, session_of
from stratagem_psserver.state import ServerState
from stratagem_psserver.waiting import AwaitedClient, Waiter, listed
from stratagem_rpc.serving.callers import certificate_of_caller

# A session does not end while a request of it is being applied.
_CLOSING_SECONDS = 20.0


class SessionRpcs:
    """OpenSession, Heartbeat, AttendSession and CloseSession."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def open(self, request: pb.OpenSessionRequest) -> pb.OpenSessionResponse:
        if len(request.session_id) != SESSION_ID_BYTES:
            raise InvalidArgumentError(
                f"a session id has {SESSION_ID_BYTES} bytes; this one has {len(request.session_id)}"
            )
        self._state.succession.require(request.program)
        # Whoever has not met this run may have sent this to another one, however long ago.
        if request.incarnation != self._state.incarnation:
            return self._response(0, None)
        self._state.changes.history.require(request.reached, self._state.settings.label)
        session = session_of(request, session_name(request.session_id))
        session.release = request.release
        # Over how many servers the client places variables does not matter before there are any.
        placed_over = 0 if self._state.store.is_empty else request.ps_tasks
        self._state.cluster.require(session, placed_over)
        former = self._state.ledger.replace(session)
        # The next process has to see what was being applied of the former one.
        await self._end(former, f"another process has taken the place of {session.label}")
        if request.role != pb.ROLE_CHIEF:
            self._state.open_session(session)
        else:
            filtered = request.filtered if request.HasField("filtered") else None
            self._state.open_session(session, filtered, request.ps_tasks)
            for hidden in self._state.cluster.hidden_from(self._state.ledger.opened()):
                await self._end([hidden], f"the device filters of {hidden.label} hide this server")
        sockets, shown = self._state.frame_sockets, certificate_of_caller(self._state.settings)
        told = sockets.to(request.session_id, shown) if sockets else None
        return self._response(session.numbering.last, told)

    async def _end(self, sessions: Iterable[Session], why: str) -> None:
        """End sessions, each once what was being applied of it is."""
        for session in sessions:
            if not await self._is_idle(session):
                raise UnavailableError(
                    f"a session is to end, since {why}, but a request of {session.label} is still "
                    "being applied; try again"
                )
            self._state.end_session(session, why)

    def _response(
        self, last_sequence: int, frame_sockets: pb.FrameSockets | None
    ) -> pb.OpenSessionResponse:
        settings = self._state.settings
        return pb.OpenSessionResponse(
            **spoken(),
            incarnation=self._state.incarnation,
            task=pb.Task(job=settings.job, index=settings.task),
            lease_seconds=settings.lease_seconds,
            reconnect_seconds=settings.reconnect_seconds,
            max_chunk_bytes=MAX_CHUNK_BYTES,
            max_request_bytes=self._state.budget.largest,
            last_sequence=last_sequence,
            restored=self._state.resumed,
            frame_sockets=frame_sockets,
            replicas=settings.replicas if settings.replicas > 1 else 0,
        )

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        state = self._state
        session = state.ledger.beat(request, state.clock())
        state.note_finished(session, request.finished, request.report)
        return pb.HeartbeatResponse(incarnation=self._state.incarnation)

    async def attend(self, request: pb.AttendSessionRequest) -> pb.AttendSessionResponse:
        state, session_id = self._state, self._state.session(request.session_id).id
        state.ledger.hold_liveness_call(session_id)
        try:
            await state.attendance.until_end(session_id)
        finally:
            state.ledger.end_liveness_call(session_id, state.clock())
        return pb.AttendSessionResponse()

    async def close(self, request: pb.CloseSessionRequest) -> pb.CloseSessionResponse:
        state, session_id = self._state, self._state.ledger.verify_caller(request.session_id)
        if session := state.ledger.known(session_id):
            await self._is_idle(session)
        state.close_session(session_id)
        return pb.CloseSessionResponse()

    async def _is_idle(self, session: Session) -> bool | None:
        """Wait until no request of a session is being applied; return None if that takes long."""

        def idle() -> bool | None:
            return not session.numbering.is_applying or None

        waiter = Waiter(session.label, "the end of its own request", list, counts=False)
        return await self._state.waits.until(session.id, idle, _CLOSING_SECONDS, waiter)


class BarrierRpcs:
    """The RPC Barrier."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def wait(self, request: BarrierRequest) -> BarrierResponse:
        state, name, generation = self._state, request.name, request.generation
        session = state.finished(request.session_id, request.finished, request.report)
        if request.HasField("forming"):
            return await self._form(request, session)
        state.changes.met(request)
        state.meet(request, session)
        subject = ("barrier", name)
        state.waits.changed(subject)

        def passed() -> bool | None:
            state.inputs.require_alike(session)
            return state.barriers.is_passed(name, generation, session.id)

        waiter = Waiter(session.label, f"barrier {name!r}", partial(self._awaited, name))
        if await state.waits.until(subject, passed, request.wait_seconds, waiter):
            return BarrierResponse()
        raise DeadlineExceededError(
            f"barrier {name!r} did not open in {request.wait_seconds:g} s: "
            f"it waits for {request.num_tasks} tasks; those that have arrived: "
            f"{listed(state.barriers.arrived(name)) or 'none'}; missing: "
            f"{state.explained(waiter)}"
        )

    async def _form(self, request: BarrierRequest, session: Session) -> BarrierResponse:
        state, name, forming = self._state, request.name, request.forming
        groups = state.formations
        if forming.only_looks:
            return groups.look(name, forming, self._is_heard)
        groups.join(name, forming, request.num_tasks, session, state.clock())
        subject = ("group", name)
        state.waits.changed(subject)

        def formed() -> BarrierResponse | None:
            return groups.formed(name, forming, session, self._is_heard, state.clock())

        waiter = Waiter(
            session.label, f"group {name!r}", partial(groups.awaited, name, self._is_heard)
        )
        deadline = state.clock() + request.wait_seconds
        while (answer := formed()) is None and (left := deadline - state.clock()) > 0:
            await state.waits.until(subject, formed, min(left, _LOOK_SECONDS), waiter)
        if answer is not None:
            state.waits.changed(subject)
            return answer
        missing = state.explained(waiter)
        groups.session_ended(session.id)
        raise DeadlineExceededError(
            f"the workers of {name!r} did not come together in {request.wait_seconds:g} s; "
            f"missing: {missing}. Start them, or look at their output"
        )

    def _is_heard(self, task: str) -> bool:
        """Whether a process of a task seems to live."""
        ledger, now = self._state.ledger, self._state.clock()
        return any(
            session.label == task and ledger.is_connected(session.id, now)
            for session in ledger.opened()
        )

    def _awaited(self, name: str) -> list[AwaitedClient]:
        state = self._state
        clients = [session.label for session in state.ledger.opened() if session.task.job]
        return state.barriers.awaited(name, clients)


_SUBJECT = "succession"

# Nobody tells when a program is not heard of any more.
_LOOK_SECONDS = 0.2


class SuccessionRpcs:
    """The SuccessionService."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def await_vacancy(
        self, request: succession_pb2.AwaitVacancyRequest
    ) -> succession_pb2.AwaitVacancyResponse:
        state = self._state
        session = state.session(request.session_id)

        def vacant() -> bool | None:
            return not self._holder(request.program) or None

        # Nobody need act first: to stand by is no standstill.
        waiter = Waiter(session.label, "the place of the program that coordinates", list)
        deadline = state.clock() + request.wait_seconds
        while not vacant() and (left := deadline - state.clock()) > 0:
            await state.waits.until(_SUBJECT, vacant, min(left, _LOOK_SECONDS), waiter)
        return succession_pb2.AwaitVacancyResponse(
            incumbent=state.succession.incumbent,
            vacant=bool(vacant()),
            waits_for=self._holder(request.program),
        )

    def _holder(self, program: bytes) -> str:
        """Return who has the place, for people; "" if a program can have it."""
        state, now = self._state, self._state.clock()
        succession = state.succession
        held_by_other = succession.incumbent.program not in (b"", program)
        if held_by_other and state.ledger.is_heard(succession.session, now):
            return succession.incumbent.name
        for session in state.ledger.opened():
            # Another program may coordinate that has never asked for the place.
            others = session.role == pb.ROLE_CHIEF and session.program not in (b"", program)
            coordinates = others and not succession.refuses(session.program)
            if coordinates and state.ledger.is_heard(session.id, now):
                return f"{session.label}, which has not waited for its turn"
        return ""

    async def succeed(
        self, request: succession_pb2.SucceedRequest
    ) -> succession_pb2.SucceedResponse:
        return await self._state.mutations.once(
            request, partial(self._succeed, request), succession_pb2.SucceedResponse
        )

    async def _succeed(
        self, request: succession_pb2.SucceedRequest, session: Session
    ) -> succession_pb2.SucceedResponse:
        succession = self._state.succession
        succession.succeed(request.incumbent, session.id)
        self._state.waits.changed(_SUBJECT)
        return succession_pb2.SucceedResponse(incumbent=succession.incumbent)


class DrawRpcs:
    """OpenPass and DrawBatch."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def open(self, request: draws_pb2.OpenPassRequest) -> draws_pb2.OpenPassResponse:
        return await self._state.mutations.once(
            request, partial(self._open, request), draws_pb2.OpenPassResponse
        )

    async def _open(
        self, request: draws_pb2.OpenPassRequest, session: Session
    ) -> draws_pb2.OpenPassResponse:
        ledger, number, left = self._state.data.open(
            request.ledger, request.num_batches, request.seed, request.coordinator
        )
        return draws_pb2.OpenPassResponse(
            number=number,
            seed=ledger.seed,
            drawn=ledger.passes[number].drawn,
            earlier=[_left(space, functions) for space, functions in left.items()],
        )

    async def draw(self, request: draws_pb2.DrawBatchRequest) -> draws_pb2.DrawBatchResponse:
        return await self._state.mutations.once(
            request, partial(self._draw, request), draws_pb2.DrawBatchResponse
        )

    async def _draw(
        self, request: draws_pb2.DrawBatchRequest, session: Session
    ) -> draws_pb2.DrawBatchResponse:
        if not request.key.HasField("closure"):
            raise InvalidArgumentError(
                f"a batch of {request.ledger!r} is for a function that a coordinator "
                "has scheduled; read it there"
            )
        identity = request.key.closure.identity
        batch = self._state.data.draw(
            request.ledger,
            request.number,
            request.num_batches,
            Function(identity.space, identity.number),
            request.order,
        )
        return draws_pb2.DrawBatchResponse(batch=batch)


def end_closures(
    state: ServerState, request: closure_pb2.EndClosuresRequest, session: Session
) -> EndedClosures:
    """Note that functions have ended; return all that have."""
    known = state.closures.end(request.space, _ended(request), Requester.from_session(session))
    state.data.release_ended(lambda one: one.space == request.space and one.number in known)
    return known


def _ended(request: closure_pb2.EndClosuresRequest) -> EndedClosures:
    return EndedClosures(request.through, frozenset(request.unended))


def _left(space: bytes, functions: Mapping[int, int]) -> draws_pb2.EarlierCoordinator:
    unfinished = [
        draws_pb2.UnfinishedFunction(number=number, batches=batches)
        for number, batches in functions.items()
    ]
    return draws_pb2.EarlierCoordinator(space=space, unfinished=unfinished)


class ClosureRpcs:
    """The ClosureService."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def end(self, request: closure_pb2.EndClosuresRequest) -> closure_pb2.EndClosuresResponse:
        state, session = self._state, self._state.session(request.session_id)
        ended = _ended(request)
        # What is refused must not be in a log, whose records are all applied again.
        state.closures.require(request.space, ended, Requester.from_session(session))
        state.changes.closures_ended(request)
        known = end_closures(state, request, session)
        return closure_pb2.EndClosuresResponse(ended=sorted(ended.unended - known.unended))
