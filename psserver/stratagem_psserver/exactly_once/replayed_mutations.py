"""Requests that a log contains, which are applied once more to come to the state after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from stratagem_proto.errors import DataLossError
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_psserver.exactly_once.ledger import SessionLedger
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.receiving import Chunks, StagedTensors
from stratagem_psserver.exactly_once.recording import Response, Work, apply_and_record
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.limits import Budget, Reservation
from stratagem_psserver.log.changes import Mutation
from stratagem_psserver.uploads import StoredRequest


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
        return await self._applied(request, Work(partial(apply, session), response_type))

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
        with Reservation(self._budget, 0, session.label) as reservation:
            # What waits beside it may be more than when it came, and was within the shares then.
            reservation.absorb(self._budget.reserve(manifest.staged_nbytes, "a request of the log"))
            staged = StagedTensors(session, chunks.tensors(manifest.specs), reservation)
            return await self._applied(header, Work(partial(apply, staged), response_type))

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

    async def _applied(self, request: Mutation, work: Work[Response]) -> Response:
        self.reply = None
        return await apply_and_record(request.key.sequence, work, (), self._record)

    def _record(self, reply: RecordedReply | None) -> None:
        self.reply = reply
