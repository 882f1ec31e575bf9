"""Which contributions count where a step closes without some workers: the first server decides."""

from __future__ import annotations

from enum import Enum, auto
from functools import partial

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1.parameter_server_pb2 import CommitContributionRequest
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.locks import LockUse


class _Decision(Enum):
    """What becomes of a contribution.

    Attributes:
        COMMIT: It is to be committed, whether it counts or was dropped before.
        DROP: It is to be dropped, because its step cannot close now.
        PAUSE: It waits on, but not within the present step of the worker.
    """

    COMMIT = auto()
    DROP = auto()
    PAUSE = auto()


class Decisions:
    """Has workers wait until it is certain whether their contributions count."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def decide(self, request: CommitContributionRequest, session: Session) -> bool:
        """Wait until the step will close, or cannot; drop the contribution if it cannot.

        Returns:
            Whether there is a decision; False if the worker has to end its present step first.

        Raises:
            DeadlineExceededError: There is none in time.
            AbortedError: The step cannot be completed any more.
        """
        state, mark = self._state, request.step
        decided = partial(self._decision, request, session)
        subject, waiter = ("group", mark.group), state.step_waiter(session, mark)
        decision = await state.waits.until(subject, decided, request.wait_seconds, waiter)
        if decision is None:
            raise DeadlineExceededError(
                f"step {mark.step} of {mark.group!r} was not applied in {request.wait_seconds:g} "
                f"s: {state.rounds.missing(mark)}. It waits for {state.explained(waiter)}"
            )
        if decision is _Decision.DROP:
            async with state.deciding(mark.group, LockUse(session.label, f"step {mark.step}")):
                if decided() is _Decision.DROP:
                    state.drop(session, mark)
        return decision is not _Decision.PAUSE

    def _decision(self, request: CommitContributionRequest, session: Session) -> _Decision | None:
        state = self._state
        may = state.rounds.may_decide(session.id, request.step, self._is_at_a_barrier)
        if may is not None:
            return _Decision.COMMIT if may else _Decision.DROP
        # Those for whom it waits may be held back until the present step of its worker ends.
        awaited = state.gate.awaits(session.client, request.key.step, state.clock())
        return _Decision.PAUSE if awaited else None

    def _is_at_a_barrier(self, worker: int) -> bool:
        state = self._state
        waiting = state.waits.clients("barrier")
        return bool(waiting) and state.task_of(worker) in waiting
