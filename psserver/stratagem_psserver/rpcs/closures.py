"""Learning which scheduled functions have ended."""

from __future__ import annotations

from stratagem_proto.v1 import closure_pb2 as pb
from stratagem_psserver.exactly_once.ended_closures import EndedClosures
from stratagem_psserver.state import ServerState


class ClosureRpcs:
    """The ClosureService."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def end(self, request: pb.EndClosuresRequest) -> pb.EndClosuresResponse:
        state = self._state
        state.session(request.session_id)
        ended = EndedClosures(request.through, frozenset(request.unended))
        known = state.closures.end(request.space, ended)
        state.data.release_ended(
            lambda one: one.space == request.space and one.number in known
        )
        return pb.EndClosuresResponse(ended=sorted(ended.unended - known.unended))
