"""Requests that change variables: staged whole, admitted once and in order, and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from stratagem_proto.errors import (
    AbortedError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    MalformedStreamError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.wire.status import from_record, to_record
from stratagem_psserver.checkpoint_gate import STEPS, CheckpointGate
from stratagem_psserver.exactly_once.closures import ClosureLedger, Requester, label
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.numbering import (
    Admission,
    Outcome,
    Refused,
    Replay,
    WaitForEarlier,
    intent_of,
)
from stratagem_psserver.exactly_once.receiving import Chunks, Manifest, Receiver, StagedTensors
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.limits import PRESENT, Budget, Stop, is_other_than_memory, out_of_memory
from stratagem_psserver.log.changes import Changes, LoggedRequest, Mutation
from stratagem_psserver.uploads import StoredRequest
from stratagem_psserver.waiting import AwaitedClient, Waiter, Waits, unfinished_steps
from stratagem_rpc import tracing
from stratagem_rpc.eager import begin

# A repetition may succeed where these failed, so they are not recorded. A stream that was cut can
# look like one that its client ended too early.
RETRYABLE = (
    CancelledError,
    DeadlineExceededError,
    MalformedStreamError,
    ResourceExhaustedError,
    UnavailableError,
)

# A request may be aborted for its session, and succeed in that of another worker.
RETRYABLE_ELSEWHERE = (*RETRYABLE, AbortedError)

# Only the network's delays make requests of a session overtake each other.
_TURN_SECONDS = 20.0

# A pause ends by itself after this time, so that no fault of a request can stop all others.
_PAUSE_SECONDS = 5.0

_PAUSE = "image"

Response = TypeVar("Response", bound=Message)


class LogEntry:
    """What the log gets of a request, which is made when its turn has come.

    Whether changes are logged may be another thing by then than when the request arrived.

    Args:
        make: Returns the request for the log; None if changes are not logged.

    Attributes:
        logged: What that has returned; None before.
    """

    __slots__ = ("_make", "logged")

    def __init__(self, make: Callable[[], LoggedRequest | None] = lambda: None) -> None:
        self._make = make
        self.logged: LoggedRequest | None = None

    def prepare(self) -> None:
        """Copy what is logged, before the request changes anything."""
        self.logged = self._make()


class PreparedMutation(Generic[Response]):
    """A request that is ready to be applied.

    Args:
        change: Checks it, then changes variables; an error with which it is refused instead.
        response_type: The class of the response, by which a recorded one is parsed.
        log_entry: What the log gets of it.
    """

    __slots__ = ("_change", "log_entry", "response_type")

    def __init__(
        self,
        change: Callable[[], Awaitable[Response]] | StratagemError,
        response_type: type[Response],
        log_entry: LogEntry,
    ) -> None:
        self._change, self.response_type, self.log_entry = change, response_type, log_entry

    async def apply(self) -> Response:
        """Apply it; the log says from here on that the change has begun."""
        if isinstance(self._change, StratagemError):
            raise self._change
        if (logged := self.log_entry.logged) is not None:
            logged.applied = True
        with tracing.within("apply"):
            return await self._change()


async def apply_and_record(
    number: int,
    apply: Callable[[], Awaitable[Response]],
    retryable: tuple[type[StratagemError], ...],
    record: Callable[[RecordedReply | None], None],
    log_entry: LogEntry | None = None,
) -> Response:
    """Apply a request and record its outcome.

    Args:
        number: The number under which the reply is recorded.
        apply: Applies it.
        retryable: Temporary errors, which are not recorded.
        record: Called with the reply to record; with None if nothing is recorded.
        log_entry: What the log gets of it; None where somebody else logs it, or nobody.
    """
    reply: RecordedReply | None = None
    try:
        try:
            if log_entry is not None:
                log_entry.prepare()
            response = await apply()
        except (RuntimeError, MemoryError) as error:
            if is_other_than_memory(error):
                raise
            raise out_of_memory("use more servers, or smaller variables and requests") from error
        reply = RecordedReply(sequence=number, response=response.SerializeToString())
        return response
    except retryable:
        raise
    except Exception as error:
        reply = RecordedReply(sequence=number, status=to_record(error))
        raise
    finally:
        record(reply)


def recorded_response(known: Outcome, response_type: type[Response]) -> Response:
    """Return the response of a request that is not to be applied.

    Raises:
        StratagemError: The request is refused, or failed when it was applied.
    """
    if isinstance(known, Refused):
        raise known.error
    if known.reply.status.code:
        raise from_record(known.reply.status)
    return response_type.FromString(known.reply.response)


class ClosureTurns:
    """Applies each mutation of a scheduled function once, over all sessions."""

    def __init__(self, ledger: ClosureLedger, waits: Waits) -> None:
        self._ledger, self._waits = ledger, waits
        self._applying: dict[tuple[str, bytes], str] = {}

    async def once(
        self, request: Mutation, mutation: PreparedMutation[Response], user: Requester
    ) -> Response:
        """Apply a mutation of a scheduled function, or repeat its reply.

        Args:
            request: The mutation.
            mutation: What applies it.
            user: Who asks for it, and is shown to others that wait for this mutation.
        """
        key, intent = request.key.closure, intent_of(request)
        subject = "closure", key.SerializeToString()

        def admission() -> Admission | None:
            decided = self._ledger.admit(key, intent, user)
            return None if isinstance(decided, WaitForEarlier) else decided

        def applying() -> list[AwaitedClient]:
            return [AwaitedClient(self._applying.get(subject, "another worker"), "same mutation")]

        def record(reply: RecordedReply | None) -> None:
            self._applying.pop(subject, None)
            self._ledger.finish(key, intent, reply, user)
            self._waits.changed(subject)

        what = f"mutation {key.ordinal} of {label(key.identity)}"
        waiter = Waiter(user.client, what, applying)
        decided = await self._waits.until(subject, admission, _TURN_SECONDS, waiter)
        if decided is None:
            raise UnavailableError(
                f"{what} is being applied for another worker; repeat it in a moment"
            )
        if isinstance(decided, (Replay, Refused)):
            return recorded_response(decided, mutation.response_type)
        self._applying[subject] = user.client
        return await apply_and_record(key.ordinal, mutation.apply, RETRYABLE_ELSEWHERE, record)


class Mutations:
    """Applies each request of each session once.

    A request is authenticated, received whole, held back while a checkpoint is cut, admitted by its
    sequence number, applied to its end, and recorded: in this order, from top to bottom.

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
        session = self._ledger.authenticate(request.key.session_id, self._clock())
        entry = LogEntry(partial(self._changes.request, response_type, request))
        mutation = PreparedMutation(partial(apply, session), response_type, entry)
        return await self._await_checkpoint_gate(session, request, mutation)

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
        session = self._ledger.authenticate(key.session_id, self._clock())
        if known := session.numbering.outcome(key):
            return recorded_response(known, response_type)
        try:
            staged, upload = await self._receiver.receive(header, session, manifest, chunks)
        except RETRYABLE:
            raise
        except StratagemError as error:
            # The request can never succeed, so the error is recorded as its outcome.
            entry = LogEntry(partial(self._changes.request, response_type, header))
            refused = PreparedMutation(error, response_type, entry)
            return await self._await_checkpoint_gate(session, header, refused)
        with staged.reservation:
            mutation = self._prepared(header, manifest, staged, apply, response_type)
            response = await self._await_checkpoint_gate(session, header, mutation)
            # A refused request has raised an error before this.
            if manifest.borrows and manifest.is_final:
                self._receiver.uploads.keep(upload, staged.reservation)
            return response

    def _prepared(
        self,
        header: Mutation,
        manifest: Manifest,
        staged: StagedTensors,
        apply: Callable[[StagedTensors], Awaitable[Response]],
        response_type: type[Response],
    ) -> PreparedMutation[Response]:
        is_owned = self._changes.log is not None
        used = staged.owned(manifest) if is_owned else staged

        def logged() -> LoggedRequest | None:
            nonlocal used
            if self._changes.log is None:
                return None
            # Somebody may have begun to need a record since it came.
            used = used if is_owned else used.owned(manifest)
            return self._changes.request(response_type, header, used.tensors)

        return PreparedMutation(lambda: apply(used), response_type, LogEntry(logged))

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

    @property
    def applies_one(self) -> bool:
        """Whether nothing is being applied beside the request that asks."""
        return self._applying == 1

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Return a context for a change that is no request's, for whose end pauses wait."""
        self._applying += 1
        try:
            yield
        finally:
            self._applying -= 1
            self._waits.changed(STEPS)
            if self._paused is not None:
                self._waits.changed(_PAUSE)

    def _is_idle(self) -> bool | None:
        return not self._applying or None

    async def _await_checkpoint_gate(
        self, session: Session, request: Mutation, mutation: PreparedMutation[Response]
    ) -> Response:
        """Apply a request once its step may go on; a cut for a checkpoint holds new steps back."""
        gate, key = self._gate, request.key
        if self._changes.log is not None:
            await self._changes.caught_up()
        # It may have ended while the request arrived.
        self._ledger.session(session.id, self._clock())
        gate.finish(session.client, session.label, key.finished, key.report)
        is_held = not gate.admits(session.client, session.label, key.step, self._clock())
        if is_held:
            await self._until_admitted(session, key.step)
        try:
            if is_held:
                self._ledger.session(session.id, self._clock())
            return await self._await_sequence(session, request, mutation)
        finally:
            gate.end_request()
            self._waits.changed(STEPS)

    async def _until_admitted(self, session: Session, step: int) -> None:
        def admitted() -> bool | None:
            # A step of a client whose session has ended would never be finished.
            self._ledger.session(session.id, self._clock())
            return self._gate.admits(session.client, session.label, step, self._clock()) or None

        waiter = Waiter(session.label, "a checkpoint", partial(unfinished_steps, self._gate))
        remaining = self._gate.remaining(self._clock())
        while not await self._waits.until(STEPS, admitted, remaining, waiter):
            remaining = self._gate.remaining(self._clock())

    async def _await_sequence(
        self, session: Session, request: Mutation, mutation: PreparedMutation[Response]
    ) -> Response:
        """Apply a request in the order of its session's sequence numbers, or repeat its reply."""
        key = request.key
        decided = self._admission(session, key) or await self._until_next(session, key)
        if isinstance(decided, (Replay, Refused)):
            return recorded_response(decided, mutation.response_type)
        counted, apply = self._ledger.counted, mutation.apply
        if key.HasField("closure"):
            # The scheduled function may run again on another worker, in another session.
            apply = partial(self._closures.once, request, mutation, Requester.from_session(session))
        elif key.counted.number or not counted.has_trained(session.label):
            # An earlier process of the task may have sent it before its end.
            apply = partial(counted.once, session, request, apply, mutation.response_type)
        self._applying += 1
        record = partial(self._record, session, mutation.log_entry)
        applying = apply_and_record(key.sequence, apply, RETRYABLE, record, mutation.log_entry)
        return await _to_its_end(applying, Stop(self.stop))

    def _admission(self, session: Session, key: RequestKey) -> Admission | None:
        if self._paused is not None:
            self._paused.add(session.id)
            return None
        decided = session.numbering.admit(key)
        return None if isinstance(decided, WaitForEarlier) else decided

    async def _until_next(self, session: Session, key: RequestKey) -> Admission:
        def admission() -> Admission | None:
            # Nobody would release what it stages after the end of its session.
            self._ledger.session(session.id, self._clock())
            return self._admission(session, key)

        earlier = AwaitedClient(session.label, f"request before {key.sequence}")
        what = f"the turn of its request {key.sequence}"
        waiter = Waiter(session.label, what, lambda: [earlier])
        until, subject = self._waits.until, session.id
        decided: Admission | None = await until(subject, admission, _TURN_SECONDS, waiter)
        if decided is None:
            raise _out_of_turn(session, key)
        return decided

    def _record(self, session: Session, entry: LogEntry, reply: RecordedReply | None) -> None:
        session.numbering.finish(reply)
        if entry.logged is not None:
            self._changes.mutated(entry.logged, reply)
        self._applying -= 1
        self._waits.changed(session.id)
        if self._paused is not None:
            self._waits.changed(_PAUSE)


def _out_of_turn(session: Session, key: RequestKey) -> UnavailableError:
    who = f"request {key.sequence} of {session.label} waits"
    if session.numbering.is_applying:
        what = f"for one that has come before and is still being applied after {_TURN_SECONDS:g} s"
        return UnavailableError(f"{who} {what}; send it again later")
    what = f"for an earlier one that has not arrived within {_TURN_SECONDS:g} s"
    return UnavailableError(f"{who} {what}; send that one again first")


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


class ReplayedMutations:
    """Applies each request at once: a log has them in the order in which they took effect.

    Attributes:
        reply: The reply to the last request; None if it failed for a reason that passes.
        applying: Held while a record is applied.
    """

    def __init__(self, ledger: SessionLedger, budget: Budget) -> None:
        self._ledger, self._budget = ledger, budget
        self.reply: RecordedReply | None = None
        self.applying = asyncio.Lock()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[bool]:
        """Return a context in which no record is being applied; it yields True."""
        async with self.applying:
            yield True

    async def once(
        self,
        request: Mutation,
        apply: Callable[[Session], Awaitable[Response]],
        response_type: type[Response],
    ) -> Response:
        """Apply a request that has no tensors; as `Mutations.once`."""
        session = self.session(request)
        return await self._applied(request, partial(apply, session))

    async def apply_once(
        self,
        header: Mutation,
        manifest: Manifest,
        chunks: Chunks,
        apply: Callable[[StagedTensors], Awaitable[Response]],
        response_type: type[Response],
    ) -> Response:
        """Apply a request with its tensors; as `Mutations.apply_once`."""
        assert isinstance(chunks, StoredRequest)
        session = self.session(header)
        with self._budget.reserve(0, "a request of the log", session.label) as reservation:
            # What waits beside it may be more than when it came, and was within the shares then.
            reservation.absorb(self._budget.reserve(manifest.staged_nbytes, "a request of the log"))
            tensors = manifest.pieces(chunks.tensors(manifest.specs))
            staged = StagedTensors(session, tensors, reservation)
            return await self._applied(header, partial(apply, staged))

    def session(self, request: Mutation) -> Session:
        """Return the session of a request.

        Raises:
            DataLossError: The log does not say that it was opened.
        """
        session = self._ledger.known(request.key.session_id)
        if session is None:
            raise DataLossError(
                f"the log has a request of session {request.key.session_id.hex()[:8]}, but not "
                "that it was opened"
            )
        return session

    async def _applied(
        self, request: Mutation, apply: Callable[[], Awaitable[Response]]
    ) -> Response:
        self.reply = None
        return await apply_and_record(request.key.sequence, apply, (), self._record)

    def _record(self, reply: RecordedReply | None) -> None:
        self.reply = reply
