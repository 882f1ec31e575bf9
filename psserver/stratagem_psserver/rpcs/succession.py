"""The RPCs by which programs that coordinate succeed each other."""

from __future__ import annotations

from functools import partial

from stratagem_proto.v1 import succession_pb2 as pb
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.state import ServerState
from stratagem_psserver.waiting import Waiter

_SUBJECT = "succession"

# Nobody tells when a program is not heard of any more.
_LOOK_SECONDS = 0.2


class SuccessionRpcs:
    """The SuccessionService."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def await_vacancy(self, request: pb.AwaitVacancyRequest) -> pb.AwaitVacancyResponse:
        state = self._state
        session = state.session(request.session_id)
        vacant = partial(self._is_vacant, request.program)
        # Nobody need act first: to stand by is no standstill.
        waiter = Waiter(session.label, "the place of the program that coordinates", list)
        deadline = state.clock() + request.wait_seconds
        while not vacant() and (left := deadline - state.clock()) > 0:
            await state.waits.until(_SUBJECT, vacant, min(left, _LOOK_SECONDS), waiter)
        return pb.AwaitVacancyResponse(
            incumbent=state.succession.incumbent,
            vacant=bool(vacant()),
            waits_for=self._holder(request.program),
        )

    def _is_vacant(self, program: bytes) -> bool | None:
        return not self._holder(program) or None

    def _holder(self, program: bytes) -> str:
        """Return who has the place, for people; "" if a program can have it."""
        state, now = self._state, self._state.clock()
        succession = state.succession
        held_by_other = succession.incumbent.program not in (b"", program)
        if held_by_other and state.ledger.is_heard(succession.session, now):
            return succession.incumbent.name
        for session in state.ledger.opened():
            if self._coordinates_too(session, program) and state.ledger.is_heard(session.id, now):
                return f"{session.label}, which has not waited for its turn"
        return ""

    def _coordinates_too(self, session: Session, program: bytes) -> bool:
        """Return whether another program coordinates, and has never asked for the place."""
        others = session.role == ROLE_CHIEF and session.program not in (b"", program)
        return others and not self._state.succession.refuses(session.program)

    async def succeed(self, request: pb.SucceedRequest) -> pb.SucceedResponse:
        return await self._state.mutations.once(
            request, partial(self._succeed, request), pb.SucceedResponse
        )

    async def _succeed(self, request: pb.SucceedRequest, session: Session) -> pb.SucceedResponse:
        succession = self._state.succession
        succession.succeed(request.incumbent, session.id)
        self._state.waits.changed(_SUBJECT)
        return pb.SucceedResponse(incumbent=succession.incumbent)
