"""The RPCs by which scheduled functions draw batches, and coordinators say which have ended."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import closure_pb2
from stratagem_proto.v1 import draws_pb2 as pb
from stratagem_psserver.data_ledgers import Function
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.exactly_once.spaces import EndedClosures, SpaceUser
from stratagem_psserver.state import ServerState


class DrawRpcs:
    """OpenPass and DrawBatch."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def open(self, request: pb.OpenPassRequest) -> pb.OpenPassResponse:
        return await self._state.mutations.once(
            request, partial(self._open, request), pb.OpenPassResponse
        )

    async def _open(self, request: pb.OpenPassRequest, session: Session) -> pb.OpenPassResponse:
        ledger, number, left = self._state.data.open(
            request.ledger, request.num_batches, request.seed, request.coordinator
        )
        return pb.OpenPassResponse(
            number=number,
            seed=ledger.seed,
            drawn=ledger.passes[number].drawn,
            earlier=[_left(space, functions) for space, functions in left.items()],
        )

    async def draw(self, request: pb.DrawBatchRequest) -> pb.DrawBatchResponse:
        return await self._state.mutations.once(
            request, partial(self._draw, request), pb.DrawBatchResponse
        )

    async def _draw(self, request: pb.DrawBatchRequest, session: Session) -> pb.DrawBatchResponse:
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
        return pb.DrawBatchResponse(batch=batch)


def end_closures(
    state: ServerState, request: closure_pb2.EndClosuresRequest, session: Session
) -> EndedClosures:
    """Note that functions have ended; return all that have."""
    known = state.closures.end(request.space, _ended(request), SpaceUser.of(session))
    state.data.release_ended(lambda one: one.space == request.space and one.number in known)
    return known


def _ended(request: closure_pb2.EndClosuresRequest) -> EndedClosures:
    return EndedClosures(request.through, frozenset(request.unended))


def _left(space: bytes, functions: Mapping[int, int]) -> pb.EarlierCoordinator:
    unfinished = [
        pb.UnfinishedFunction(number=number, batches=batches)
        for number, batches in functions.items()
    ]
    return pb.EarlierCoordinator(space=space, unfinished=unfinished)


class ClosureRpcs:
    """The ClosureService."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def end(self, request: closure_pb2.EndClosuresRequest) -> closure_pb2.EndClosuresResponse:
        state, session = self._state, self._state.session(request.session_id)
        ended = _ended(request)
        # What is refused must not be in a log, whose records are all applied again.
        state.closures.require(request.space, ended, SpaceUser.of(session))
        state.changes.closures_ended(request)
        known = end_closures(state, request, session)
        return closure_pb2.EndClosuresResponse(ended=sorted(ended.unended - known.unended))
