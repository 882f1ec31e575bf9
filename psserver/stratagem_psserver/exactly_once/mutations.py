"""Requests that change variables: staged whole, then applied once and in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias

import torch
from google.protobuf.message import Message

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
from stratagem_psserver.checkpoints.cut import STEPS, CheckpointGate
from stratagem_psserver.exactly_once.closure_turns import ClosureTurns
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
from stratagem_psserver.exactly_once.settling import PASSING, Work, answer, settled
from stratagem_psserver.limits.allocation import is_out_of_memory
from stratagem_psserver.limits.budget import Budget, Reservation
from stratagem_psserver.uploads.request_stream import RequestStream
from stratagem_psserver.uploads.upload_memory import Upload, UploadMemory
from stratagem_psserver.waiting.waits import Waits

# Requests of a session overtake each other by no more than the network's delays.
_TURN_SECONDS = 20.0


@dataclass(frozen=True)
class Staged:
    """The tensors of one request and the bytes of the budget that they occupy.

    Attributes:
        session: Who has sent them.
        tensors: They, in their order.
        reservation: Those bytes.
        segment: Where they lie, as their layout says; None if they do not.
    """

    session: Session
    tensors: list[torch.Tensor]
    reservation: Reservation
    segment: Segment | None = None


Chunks: TypeAlias = RequestStream[Any]


class Mutations:
    """Applies each request of each session once.

    Attributes:
        uploads: Memory of requests that were answered, for those to come.
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
        self.uploads = UploadMemory()

    async def once(
        self, request: Mutation, apply: Callable[[Session], Awaitable[Message]]
    ) -> bytes:
        """Applies a request without tensors, or repeats its reply."""
        session = self._ledger.session(request.key.session_id, time.monotonic())
        work = partial(_serialised, partial(apply, session))
        return await self._in_step(session, request, work)

    async def apply_once(
        self,
        header: Mutation,
        manifest: Manifest,
        chunks: Chunks,
        apply: Callable[[Staged], Awaitable[Message]],
        borrows: bool = False,
    ) -> bytes:
        """Receives a request's tensors and applies it, or repeats its reply.

        Args:
            header: What is asked.
            manifest: Its tensors.
            chunks: Their bytes as they arrive.
            apply: Checks the request, then changes variables. Once begun it runs to
                its end, even if the client goes away.
            borrows: Whether it has no use for the tensors once it is answered, so that
                they may stay in memory that the client shares.

        Returns:
            The serialised response.
        """
        key = header.key
        session = self._ledger.session(key.session_id, time.monotonic())
        if known := session.numbering.outcome(key):
            return answer(known)
        with Reservation(self._budget, 0) as reservation:
            try:
                upload = self.uploads.take(manifest.specs, manifest.nbytes)
                purpose = f"request {key.sequence} of {session.label}"
                staging = self._budget.reserve(manifest.staged_nbytes, purpose)
                reservation.absorb(staging)
                tensors, segment = await _receive(manifest, upload, chunks, borrows)
            except PASSING:
                raise
            except StratagemError as error:
                # What can never succeed uses up its number like anything else.
                work: Work = partial(_refuse, error)
            else:
                self._received(header, manifest.nbytes)
                staged = Staged(session, tensors, reservation, segment)
                work = partial(_serialised, partial(apply, staged))
            response = await self._in_step(session, header, work)
            # What was refused has raised.
            if borrows and manifest.is_final:
                self.uploads.keep(upload, reservation)
            return response

    def _received(self, header: Mutation, nbytes: int) -> None:
        if nbytes:
            self._figures.calls(type(header).__name__).received.observe(nbytes)

    async def _in_step(self, session: Session, request: Mutation, work: Work) -> bytes:
        """Lets no step begin while a checkpoint is marked, which takes a moment."""
        gate, key = self._gate, request.key
        self._require_open(session)
        gate.finish(session.client, session.label, key.finished, key.report)
        admitted = partial(self._admitted, session, key.step)
        while not admitted():
            remaining = gate.remaining(time.monotonic())
            if await self._waits.until(STEPS, admitted, remaining):
                break
        try:
            if key.HasField("closure"):
                # Done once, as its function may run again.
                work = partial(self._closures.once, request, work)
            return await self._in_turn(session, key, work)
        finally:
            gate.settled()
            self._waits.changed(STEPS)

    def _admitted(self, session: Session, step: int) -> bool | None:
        # Nobody would ever end a step of a client that is gone.
        self._require_open(session)
        now = time.monotonic()
        return self._gate.admits(session.client, session.label, step, now) or None

    def _require_open(self, session: Session) -> None:
        """Checks that a session has not ended, as while data came, or by waiting."""
        self._ledger.session(session.id, time.monotonic())

    async def _in_turn(self, session: Session, key: RequestKey, work: Work) -> bytes:
        def admission() -> Admission | None:
            # What it stages after its end would stay.
            self._require_open(session)
            decided = session.numbering.admit(key)
            return None if isinstance(decided, WaitForEarlier) else decided

        decided = admission() or await self._waits.until(
            session.id, admission, _TURN_SECONDS
        )
        if decided is None:
            raise UnavailableError(
                f"request {key.sequence} of {session.label} waits for an earlier one "
                f"that has not come in {_TURN_SECONDS:g} s; send that one again first"
            )
        if isinstance(decided, (Replay, Refused)):
            return answer(decided)
        settle = partial(self._settle, session)
        return await _to_its_end(settled(key.sequence, work, PASSING, settle))

    def _settle(self, session: Session, reply: RecordedReply | None) -> None:
        session.numbering.settle(reply)
        self._waits.changed(session.id)


async def _receive(
    manifest: Manifest, upload: Upload, chunks: Chunks, borrows: bool
) -> tuple[list[torch.Tensor], Segment | None]:
    """Takes in all that comes; says where it lies, as of `Staged`.

    Raises:
        MalformedStreamError: It is too little, as when the connection was cut, or too
            much. The number of the request stays unused, as it may come again whole.
    """
    if borrows and chunks.segment is not None:
        with _allocating():
            tensors = chunks.found(manifest.layout)
        if tensors is not None:
            return tensors, chunks.segment
    specs, first = manifest.specs, await anext(chunks)
    if borrows and (tensors := whole(specs, first)) is not None:
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
            raise MalformedStreamError(
                "the stream goes on although all of its tensors have come"
            )


@contextmanager
def _allocating() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise InvalidArgumentError(
                f"no tensor can be as described: {str(error).splitlines()[0]}"
            ) from error
        raise ResourceExhaustedError(
            "the machine of the server is out of memory; repeat the request in a "
            "moment, or start the server with a smaller --staged-bytes"
        ) from error


async def _refuse(error: StratagemError) -> NoReturn:
    raise error


async def _serialised(apply: Callable[[], Awaitable[Message]]) -> bytes:
    with tracing.within("apply"):
        return (await apply()).SerializeToString()


async def _to_its_end(work: Coroutine[Any, Any, bytes]) -> bytes:
    """Awaits work that goes on even if the caller is cancelled meanwhile."""
    task = begin(work)
    if task.done():
        return task.result()
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
