"""The RPCs by which workers contribute to synchronous steps."""

from __future__ import annotations

from functools import partial

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1 import closed_step_pb2
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.exactly_once.receiving import StagedTensors
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.rpcs.closing import close, finish
from stratagem_psserver.rpcs.steps import all_gradients
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.contributions import Part, limits_of
from stratagem_psserver.variables.locks import LockUse


async def stage_contribution(
    state: ServerState, header: pb.UpdateHeader, staged: StagedTensors
) -> None:
    """Keep a worker's contribution to a step; no variable changes yet."""
    use = LockUse(staged.session.label, "contribution")
    async with state.deciding(header.contribution.step.group, use):
        _stage(state, header, staged)


def _stage(state: ServerState, header: pb.UpdateHeader, staged: StagedTensors) -> None:
    program, limits = header.program.optimizer, limits_of(header)
    gradients = all_gradients(state, header, staged)
    # A step that cannot be taken is this worker's mistake, so the error goes to this worker.
    state.optimizers.prepare(program, gradients)
    reservation, records = staged.reservation.hand_over(), [state.changes.present]
    if header.HasField("backward"):
        kept = state.kept.of(staged.session.id, header.backward)
        reservation.absorb(kept.reservation)
        records = [*kept.records, *records]
    part = Part(
        session_id=staged.session.id,
        task=staged.session.label,
        contribution=header.contribution,
        program=program,
        gradients={gradient.variable: gradient for gradient in gradients},
        reservation=reservation,
        records=records,
        limits=limits,
        nonfinite_variable=header.nonfinite_variable,
    )
    try:
        state.rounds.stage(part)
    except Exception:
        part.reservation.release()
        raise


class ContributionRpcs:
    """CommitContribution, ListClosedSteps and FinishStep."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def commit(self, request: pb.CommitContributionRequest) -> pb.CommitContributionResponse:
        await self._wait_for_others(request)
        return await self.commit_now(request)

    async def commit_now(
        self, request: pb.CommitContributionRequest
    ) -> pb.CommitContributionResponse:
        """Commit without waiting for anybody, as a request of a log that has waited before."""
        apply = partial(self._commit, request.step)
        return await self._state.mutations.once(request, apply, pb.CommitContributionResponse)

    async def _wait_for_others(self, request: pb.CommitContributionRequest) -> None:
        """Wait until those have committed whose contributions to the step were dropped."""
        state, key, mark = self._state, request.key, request.step
        session = state.ledger.known(state.ledger.claim(key.session_id))
        if session is None or session.numbering.outcome(key):
            return
        ready = partial(state.rounds.may_commit, session.id, mark)
        waiter = state.step_waiter(session, mark)
        subject = "group", mark.group
        if not await state.waits.until(subject, ready, request.wait_seconds, waiter):
            raise DeadlineExceededError(
                f"{session.label} could not commit to step {mark.step} of {mark.group!r} in "
                f"{request.wait_seconds:g} s: contributions of workers that had ended were "
                f"dropped, and {state.rounds.missing(mark)}. It waits for {state.explained(waiter)}"
            )

    async def _commit(self, mark: pb.StepMark, session: Session) -> pb.CommitContributionResponse:
        use = LockUse(session.label, f"step {mark.step}")
        async with self._state.deciding(mark.group, use):
            if self._state.rounds.is_late(session.id, mark):
                self._state.clocks.count_dropped(mark.group, session.id)
                return pb.CommitContributionResponse(dropped=True)
            parts = self._state.rounds.commit(session.id, session.label, mark)
            if parts:
                await close(self._state, mark, parts, use)
        self._state.groups_changed([mark.group])
        return pb.CommitContributionResponse()

    async def list_closed(
        self, request: closed_step_pb2.ListClosedStepsRequest
    ) -> closed_step_pb2.ListClosedStepsResponse:
        state = self._state
        mark = pb.StepMark(group=request.group, step=request.step)
        session = state.session(request.session_id)
        # A caller that does not wait only wants the list, and is not told of failed steps.
        if request.wait_seconds:
            closed = partial(state.rounds.has_closed, mark, session.id)
            subject, waiter = ("group", mark.group), state.step_waiter(session, mark)
            await state.waits.until(subject, closed, request.wait_seconds, waiter)
        shares = state.rounds.unfinished(mark.group).shares(mark.step)
        return closed_step_pb2.ListClosedStepsResponse(steps=shares)

    async def finish(
        self, request: closed_step_pb2.FinishStepRequest
    ) -> closed_step_pb2.FinishStepResponse:
        return await self._state.mutations.once(
            request, partial(self._finish, request), closed_step_pb2.FinishStepResponse
        )

    async def _finish(
        self, request: closed_step_pb2.FinishStepRequest, session: Session
    ) -> closed_step_pb2.FinishStepResponse:
        mark = pb.StepMark(group=request.group, step=request.step)
        use = LockUse(session.label, f"step {mark.step}")
        async with self._state.deciding(request.group, use):
            await finish(self._state, mark, request.norm, use)
        return closed_step_pb2.FinishStepResponse()
