"""Requests that change variables: they are staged whole, then applied once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

import torch

from stratagem_proto import tracing
from stratagem_proto.eager import begin
from stratagem_proto.errors import (
    InvalidArgumentError,
    MalformedStreamError,
    ResourceExhaustedError,
    StratagemError,
    UnavailableError,
)
from stratagem_proto.serving.figures import Figures
from stratagem_proto.serving.rpc_boundary import is_over
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import RequestKey
from stratagem_proto.wire.codec import Assembler, whole
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.checkpoint_gate import STEPS, CheckpointGate
from stratagem_psserver.exactly_once.intents import Mutation
from stratagem_psserver.exactly_once.ledger import (
    Admission,
    Refused,
    Replay,
    Session,
    SessionLedger,
    WaitForEarlier,
)
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.recording import (
    PASSING,
    ClosureTurns,
    Response,
    Work,
    apply_and_record,
    recorded_response,
)
from stratagem_psserver.limits.allocation import is_out_of_memory
from stratagem_psserver.limits.budget import Budget, Reservation
from stratagem_psserver.uploads import RequestStream, Upload, UploadMemory
from stratagem_psserver.waiting import Awaited, Waiter, Waits, unfinished_steps

# Only the network's delays make requests of a session overtake each other.
_TURN_SECONDS = 20.0


@dataclass(frozen=True)
class StagedTensors:
    """The tensors of one request and the bytes of the budget that they occupy.

    Attributes:
        session: The session of the client that sent them.
        tensors: The tensors, in the order of the request.
        reservation: Their bytes of the budget.
        segment: The shared memory that contains them, laid out as the manifest says; None if they
            were sent.
    """

    session: Session
    tensors: list[torch.Tensor]
    reservation: Reservation
    segment: Segment | None = None


Chunks: TypeAlias = RequestStream[Any]


class Mutations:
    """Applies each request of each session once.

    Attributes:
        uploads: Memory of answered requests, which later requests reuse.
    """

    def __init__(
        self,
        ledger: SessionLedger,
        closures: ClosureTurns,
        budget: Budget,
        waits: Waits,
        gate: CheckpointGate,
        figures: Figures,
    ) -> None:
        self._figures = figures
        self._ledger, self._closures = ledger, closures
        self._budget, self._waits, self._gate = budget, waits, gate
        self._clock = waits.clock
        self.uploads = UploadMemory()

    async def once(
        self,
        request: Mutation,
        apply: Callable[[Session], Awaitable[Response]],
        response_type: type[Response],
    ) -> Response:
        """Apply a request that has no tensors, or repeat its reply."""
        session = self._ledger.session(request.key.session_id, self._clock())
        work = Work(partial(_traced, partial(apply, session)), response_type)
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
        session = self._ledger.session(key.session_id, self._clock())
        if known := session.numbering.outcome(key):
            return recorded_response(known, response_type)
        with Reservation(self._budget, 0) as reservation:
            try:
                upload = self.uploads.take(manifest.specs, manifest.nbytes)
                purpose = f"request {key.sequence} of {session.label}"
                staging = self._budget.reserve(manifest.staged_nbytes, purpose)
                reservation.absorb(staging)
                tensors, segment = await _receive(manifest, upload, chunks)
            except PASSING:
                raise
            except StratagemError as error:
                # The request can never succeed, so the error is recorded as its outcome.
                work = Work(partial(_refuse, error), response_type)
            else:
                self._received(header, manifest.nbytes)
                staged = StagedTensors(session, tensors, reservation, segment)
                work = Work(partial(_traced, partial(apply, staged)), response_type)
            response = await self._in_step(session, header, work)
            # A refused request has raised an error before this.
            if manifest.borrows and manifest.is_final:
                self.uploads.keep(upload, reservation)
            return response

    def _received(self, header: Mutation, nbytes: int) -> None:
        if nbytes:
            self._figures.calls(type(header).__name__).received.observe(nbytes)

    async def _in_step(self, session: Session, request: Mutation, work: Work[Response]) -> Response:
        """Apply a request once its step may go on; a cut for a checkpoint holds new steps back."""
        gate, key = self._gate, request.key
        self._require_open(session)
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
                once = partial(self._closures.once, request, work, session.label)
                work = Work(once, work.response_type)
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
            decided = session.numbering.admit(key)
            return None if isinstance(decided, WaitForEarlier) else decided

        decided = admission() or await self._waits.until(
            session.id, admission, _TURN_SECONDS, _in_line(session, key)
        )
        if decided is None:
            raise UnavailableError(
                f"request {key.sequence} of {session.label} waits for an earlier one "
                f"that has not arrived within {_TURN_SECONDS:g} s; send that one again first"
            )
        if isinstance(decided, (Replay, Refused)):
            return recorded_response(decided, work.response_type)
        record = partial(self._record, session)
        applying = apply_and_record(key.sequence, work, PASSING, record)
        return await _to_its_end(applying)

    def _record(self, session: Session, reply: RecordedReply | None) -> None:
        session.numbering.finish(reply)
        self._waits.changed(session.id)


def _in_line(session: Session, key: RequestKey) -> Waiter:
    earlier = Awaited(session.label, f"request before {key.sequence}")
    return Waiter(session.label, f"the turn of its request {key.sequence}", lambda: [earlier])


async def _receive(
    manifest: Manifest, upload: Upload, chunks: Chunks
) -> tuple[list[torch.Tensor], Segment | None]:
    """Receive all tensors; return them and the segment that contains them, if any.

    Raises:
        MalformedStreamError: Bytes are missing, as when the connection was cut, or too many came.
            The request keeps its number, since it may be sent again whole.
    """
    if manifest.borrows and chunks.segment is not None:
        with _allocating():
            tensors = chunks.found(manifest.layout)
        if tensors is not None:
            return tensors, chunks.segment
    specs, first = manifest.specs, await anext(chunks)
    if manifest.borrows and (tensors := whole(specs, first)) is not None:
        if not is_over(chunks):
            await _end(chunks)
        return tensors, None
    with _allocating():
        assembler = Assembler(specs, upload.tensors())
    assembler.add(first)
    async for some in chunks:
        assembler.add(some)
    return assembler.finish(), None


async def _end(chunks: Chunks) -> None:
    async for some in chunks:
        if some:
            raise MalformedStreamError("the stream continues after the last byte of its tensors")


@contextmanager
def _allocating() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise InvalidArgumentError(
                f"a tensor cannot be made as described: {str(error).splitlines()[0]}"
            ) from error
        raise ResourceExhaustedError(
            "the machine of the server is out of memory; repeat the request in a "
            "moment, or start the server with a smaller --staged-bytes"
        ) from error


async def _refuse(error: StratagemError) -> NoReturn:
    raise error


async def _traced(apply: Callable[[], Awaitable[Response]]) -> Response:
    with tracing.within("apply"):
        return await apply()


async def _to_its_end(work: Coroutine[Any, Any, Response]) -> Response:
    """Run work to its end, even if the caller is cancelled meanwhile."""
    task = begin(work)
    if task.done():
        return task.result()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # nobody is left to raise it to; a repetition gets the recorded one
        raise
