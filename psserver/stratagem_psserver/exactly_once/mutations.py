"""Requests that change variables: they are staged whole, then applied once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NoReturn

from stratagem_proto import tracing
from stratagem_proto.eager import begin
from stratagem_proto.errors import CancelledError, StratagemError, UnavailableError
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_psserver.checkpoint_gate import STEPS, CheckpointGate
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.numbering import Admission, Refused, Replay, WaitForEarlier
from stratagem_psserver.exactly_once.receiving import Chunks, Receiver, StagedTensors
from stratagem_psserver.exactly_once.recording import (
    PASSING,
    ClosureTurns,
    ForLog,
    Response,
    Work,
    apply_and_record,
    recorded_response,
)
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.exactly_once.spaces import SpaceUser
from stratagem_psserver.limits import PRESENT, Stop
from stratagem_psserver.log.changes import Changes, LoggedRequest, Mutation
from stratagem_psserver.waiting import AwaitedClient, Waiter, Waits, unfinished_steps

# Only the network's delays make requests of a session overtake each other.
_TURN_SECONDS = 20.0


# A pause ends by itself after this time, so that no fault of a request can stop all others.
_PAUSE_SECONDS = 5.0

_PAUSE = "image"


class Mutations:
    """Applies each request of each session once.

    Attributes:
        stop: Stops all requests that are being applied, as far as they look.
    """

    def __init__(
        self,
        ledger: SessionLedger,
        closures: ClosureTurns,
        receiver: Receiver,
        waits: Waits,
        gate: CheckpointGate,
        changes: Changes,
    ) -> None:
        self._ledger, self._closures, self._receiver = ledger, closures, receiver
        self._waits, self._gate, self._changes = waits, gate, changes
        self._clock = waits.clock
        self.stop = Stop()
        self._applying = 0
        # The sessions whose requests wait for the end of a pause; None while there is none.
        self._paused: set[bytes] | None = None
        self._pausing = asyncio.Lock()

    async def once(
        self,
        request: Mutation,
        apply: Callable[[Session], Awaitable[Response]],
        response_type: type[Response],
    ) -> Response:
        """Apply a request that has no tensors, or repeat its reply."""
        session = self._ledger.of_call(request.key.session_id, self._clock())
        for_log = ForLog(partial(self._changes.request, response_type, request))
        work = Work(_begun(partial(apply, session), for_log), response_type, for_log)
        return await self._in_step(session, request, work)

    async def apply_once(
        self,
        header: Mutation,
        manifest: Manifest,
        chunks: Chunks,
        apply: Callable[[StagedTensors], Awaitable[Response]],
        response_type: type[Response],
    ) -> Response:
        """Receive a request's tensors and apply it, or repeat its reply.

        Args:
            header: The request.
            manifest: The description of its tensors.
            chunks: The bytes of the tensors as they arrive.
            apply: Checks the request, then changes variables. Once it has begun it runs to its end,
                even if the client disconnects.
            response_type: The class of the response.
        """
        key = header.key
        session = self._ledger.of_call(key.session_id, self._clock())
        if known := session.numbering.outcome(key):
            return recorded_response(known, response_type)
        with self._receiver.reservation(session.label) as reservation:
            try:
                staged, upload = await self._receiver.receive(
                    header, session, manifest, chunks, reservation
                )
            except PASSING:
                raise
            except StratagemError as error:
                # The request can never succeed, so the error is recorded as its outcome.
                for_log = ForLog(partial(self._changes.request, response_type, header))
                work = Work(partial(_refuse, error), response_type, for_log)
            else:
                work = self._staged_work(header, manifest, staged, apply, response_type)
            response = await self._in_step(session, header, work)
            # A refused request has raised an error before this.
            if manifest.borrows and manifest.is_final:
                self._receiver.uploads.keep(upload, reservation)
            return response

    def _staged_work(
        self,
        header: Mutation,
        manifest: Manifest,
        staged: StagedTensors,
        apply: Callable[[StagedTensors], Awaitable[Response]],
        response_type: type[Response],
    ) -> Work[Response]:
        is_owned = self._changes.log is not None
        used = staged.owned(manifest) if is_owned else staged

        def logged() -> LoggedRequest | None:
            nonlocal used
            if self._changes.log is None:
                return None
            # Somebody may have begun to need a record since it came.
            used = used if is_owned else used.owned(manifest)
            return self._changes.request(response_type, header, used.tensors)

        for_log = ForLog(logged)
        return Work(_begun(lambda: apply(used), for_log), response_type, for_log)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[bool]:
        """Return a context in which no request is being applied.

        It yields False if the requests under way did not end in time.
        """
        # One after the other, since each holds requests back for its own end.
        async with self._pausing:
            self._paused = set()
            try:
                waiter = Waiter("the server", "the end of all requests under way", list)
                yield bool(await self._waits.until(_PAUSE, self._is_idle, _PAUSE_SECONDS, waiter))
            finally:
                held, self._paused = self._paused, None
                for session_id in held:
                    self._waits.changed(session_id)

    @property
    def is_paused(self) -> bool:
        """Whether no request may begin to be applied now."""
        return self._paused is not None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Return a context for a change that is no request's, for whose end pauses wait."""
        self._applying += 1
        try:
            yield
        finally:
            self._applying -= 1
            if self._paused is not None:
                self._waits.changed(_PAUSE)

    def _is_idle(self) -> bool | None:
        return not self._applying or None

    async def _in_step(self, session: Session, request: Mutation, work: Work[Response]) -> Response:
        """Apply a request once its step may go on; a cut for a checkpoint holds new steps back."""
        gate, key = self._gate, request.key
        self._require_open(session)
        await self._changes.caught_up()
        gate.finish(session.client, session.label, key.finished, key.report)
        admitted = partial(self._admitted, session, key.step)
        while not admitted():
            waiter = Waiter(session.label, "a checkpoint", partial(unfinished_steps, gate))
            remaining = gate.remaining(self._clock())
            if await self._waits.until(STEPS, admitted, remaining, waiter):
                break
        try:
            if key.HasField("closure"):
                # The scheduled function may run again on another worker, in another session.
                own = Work(work.apply, work.response_type)
                once = partial(self._closures.once, request, own, SpaceUser.of(session))
                work = Work(once, work.response_type, work.for_log)
            elif key.counted.number or not self._ledger.counted.has_uncounted(session.label):
                # An earlier process of the task may have sent it before its end.
                counting = partial(
                    self._ledger.counted.once, session, request, work.apply, work.response_type
                )
                work = Work(counting, work.response_type, work.for_log)
            return await self._in_turn(session, key, work)
        finally:
            gate.end_request()
            self._waits.changed(STEPS)

    def _admitted(self, session: Session, step: int) -> bool | None:
        # A step of a client whose session has ended would never be finished.
        self._require_open(session)
        now = self._clock()
        return self._gate.admits(session.client, session.label, step, now) or None

    def _require_open(self, session: Session) -> None:
        """Check that a session has not ended while the request arrived or waited."""
        self._ledger.session(session.id, self._clock())

    async def _in_turn(self, session: Session, key: RequestKey, work: Work[Response]) -> Response:
        def admission() -> Admission | None:
            # Nobody would release what it stages after the end of its session.
            self._require_open(session)
            if self._paused is not None:
                self._paused.add(session.id)
                return None
            decided = session.numbering.admit(key)
            return None if isinstance(decided, WaitForEarlier) else decided

        decided = admission() or await self._waits.until(
            session.id, admission, _TURN_SECONDS, _in_line(session, key)
        )
        if decided is None:
            raise _out_of_turn(session, key)
        if isinstance(decided, (Replay, Refused)):
            return recorded_response(decided, work.response_type)
        self._applying += 1
        record = partial(self._record, session, work.for_log)
        applying = apply_and_record(key.sequence, work, PASSING, record)
        return await _to_its_end(applying, Stop(self.stop))

    def _record(self, session: Session, for_log: ForLog, reply: RecordedReply | None) -> None:
        session.numbering.finish(reply)
        if for_log.logged is not None:
            self._changes.mutated(for_log.logged, reply)
        self._applying -= 1
        self._waits.changed(session.id)
        if self._paused is not None:
            self._waits.changed(_PAUSE)


def _in_line(session: Session, key: RequestKey) -> Waiter:
    earlier = AwaitedClient(session.label, f"request before {key.sequence}")
    return Waiter(session.label, f"the turn of its request {key.sequence}", lambda: [earlier])


def _out_of_turn(session: Session, key: RequestKey) -> UnavailableError:
    who = f"request {key.sequence} of {session.label} waits"
    if session.numbering.is_applying:
        what = f"for one that has come before and is still being applied after {_TURN_SECONDS:g} s"
        return UnavailableError(f"{who} {what}; send it again later")
    what = f"for an earlier one that has not arrived within {_TURN_SECONDS:g} s"
    return UnavailableError(f"{who} {what}; send that one again first")


async def _refuse(error: StratagemError) -> NoReturn:
    raise error


def _begun(
    apply: Callable[[], Awaitable[Response]], for_log: ForLog
) -> Callable[[], Awaitable[Response]]:
    """Return a function that applies a request, and notes before that its change has begun."""

    async def traced() -> Response:
        for_log.begin()
        with tracing.within("apply"):
            return await apply()

    return traced


async def _to_its_end(work: Coroutine[Any, Any, Response], stop: Stop) -> Response:
    """Run work to its end, even if the caller is cancelled meanwhile.

    Work that looks whether it is to `stop` then does so, and has changed nothing.
    """
    former = PRESENT.set(stop)
    try:
        task = begin(work)
    finally:
        PRESENT.reset(former)
    if task.done():
        return task.result()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.request(CancelledError("the client of this request waits for it no longer"))
        # Nobody is left to raise an error to; a repetition gets the recorded one.
        task.add_done_callback(_forget_outcome)
        await asyncio.wait([task])
        raise


def _forget_outcome(task: asyncio.Future[Response]) -> None:
    if not task.cancelled():
        task.exception()
