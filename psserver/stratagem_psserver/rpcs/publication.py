"""The RPCs by which versions are published, and by which readers follow them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from stratagem_proto.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from stratagem_proto.protocol import SESSION_ID_BYTES, check_name
from stratagem_proto.v1 import publication_pb2 as pb
from stratagem_proto.v1.access_pb2 import ACTION_READ
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.checkpoint_gate import STEPS
from stratagem_psserver.exactly_once.mutations import Mutations
from stratagem_psserver.exactly_once.receiving import Chunks, Manifest, StagedTensors
from stratagem_psserver.exactly_once.sessions import Session
from stratagem_psserver.publication import PUBLICATION
from stratagem_psserver.state import ServerState
from stratagem_psserver.waiting import Waiter, unfinished_steps
from stratagem_rpc.serving.access import Introduced
from stratagem_storage.checkpoint.parts import require_storable

# Readers ask again, so that they find out when a connection is gone.
_LONGEST_SECONDS = 60.0


class PublicationRpcs:
    """The PublicationService."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def publish(self, header: pb.PublishHeader, chunks: Chunks) -> pb.PublishResponse:
        manifest = Manifest([spec.tensor for spec in header.values])
        apply = partial(self._publish, header)
        return await self._state.mutations.apply_once(
            header, manifest, chunks, apply, pb.PublishResponse
        )

    async def _publish(self, header: pb.PublishHeader, staged: StagedTensors) -> pb.PublishResponse:
        state, session = self._state, staged.session
        _check(header)
        # What a log has was published at a cut once, by somebody who may be gone by now.
        is_live = isinstance(state.mutations, Mutations)
        try:
            if is_live:
                self._require_sole(session)
                await self._await_cut(header.cut, session)
            self._require_new(header)
            # The request's own may be in memory that the client shares.
            tensors = [tensor.clone() for tensor in staged.tensors]
            state.publication.publish(header, state.store, tensors, _publisher_of(session))
        finally:
            if is_live:
                state.gate.release(header.cut)
                state.waits.changed(STEPS)
        return pb.PublishResponse()

    async def _await_cut(self, cut: bytes, session: Session) -> None:
        """Wait until nothing but this request is being applied, at a cut that is being taken."""
        state, gate = self._state, self._state.gate

        def alone() -> bool | None:
            mutations = state.mutations
            is_alone = isinstance(mutations, Mutations) and mutations.applies_one
            return (gate.applying == 1 and is_alone) or None

        waiter = Waiter(
            session.label, "the end of all requests under way", partial(unfinished_steps, gate)
        )
        seconds = gate.remaining(state.clock())
        quiet = await state.waits.until(STEPS, alone, seconds, waiter)
        if not quiet or not gate.holds(cut, state.clock()):
            raise AbortedError("the steps were held for too long; try again")

    def _require_sole(self, session: Session) -> None:
        """Check that nobody else publishes whose session is open.

        A program publishes in a session of its own, and perhaps in another one after it has lost
        that; all of them name its process.
        """
        last, opened = self._state.publication.publisher, self._state.ledger.opened()
        if not last or last == _publisher_of(session):
            return
        for other in opened:
            if _publisher_of(other) == last and other.client != session.client:
                raise FailedPreconditionError(
                    f"{other.label} publishes versions of {self._state.settings.label}, and two "
                    f"publishers would confuse those who follow; {session.label} may publish once "
                    "the other program has ended or closed its strategy"
                )

    def _require_new(self, header: pb.PublishHeader) -> None:
        state = self._state
        if header.version <= state.publication.version:
            raise FailedPreconditionError(
                f"{state.settings.label} has published version {state.publication.version}, and "
                f"{header.version} is not greater; publish again, under a later number"
            )
        for spec in header.values:
            if state.store.find(spec.name) is not None:
                raise InvalidArgumentError(
                    f"the publisher has a value {spec.name!r}, and the server hosts a variable of "
                    "that name; give one of them another name",
                    variable=spec.name,
                )

    async def list(self, request: pb.ListVersionsRequest) -> pb.ListVersionsResponse:
        state = self._state
        publication, seconds = state.publication, min(request.wait_seconds, _LONGEST_SECONDS)
        if publication.listed <= request.after and seconds > 0.0:
            await state.waits.news(
                PUBLICATION, lambda: publication.listed > request.after or None, seconds
            )
        return pb.ListVersionsResponse(
            training=state.cluster.training,
            servers=state.cluster.ps_tasks,
            task=Task(job=state.settings.job, index=state.settings.task),
            latest=publication.listed,
            links=publication.links(request.takes_deltas),
            now=int(time.time() * 1000),
        )

    async def read(
        self, request: pb.ReadVersionRequest, _: Segment | None
    ) -> AsyncGenerator[bytes, None]:
        if request.without_rows:
            raise InvalidArgumentError(
                f"{self._state.settings.label} is a parameter server, which answers no lookups and "
                "sends tables with their rows; follow it by its address without serve://, or give "
                "that of a reader server"
            )
        wanted = pb.VersionLink(version=request.version, previous=request.previous, cut=request.cut)
        publication = self._state.publication
        if (permissions := self._state.permissions) is not None:
            caller, names = Introduced.from_handshake(request.asking), publication.names(wanted)
            permissions.require_all("ReadVersion", ACTION_READ, caller, names)
        async with aclosing(publication.read(wanted)) as messages:
            async for message in messages:
                yield message.SerializeToString()


def _publisher_of(session: Session) -> bytes:
    """Return what names the program that a session is of."""
    return session.process or session.client


def _check(header: pb.PublishHeader) -> None:
    if len(header.cut) != SESSION_ID_BYTES or not header.version:
        raise InvalidArgumentError(
            f"a version has a cut of {SESSION_ID_BYTES} bytes and a number above 0; this one has "
            f"{len(header.cut)} bytes and {header.version}"
        )
    names = [spec.name for spec in header.values]
    for spec in header.values:
        check_name(spec.name)
        require_storable(spec.name, spec.tensor)
    if len(set(names)) < len(names):
        raise InvalidArgumentError("two values of the publisher have one name; rename one of them")
