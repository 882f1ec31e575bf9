"""Contributing to synchronous steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stratagem_proto.errors import StratagemError
from stratagem_proto.status import from_record, to_record
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.contributions import Part
from stratagem_psserver.ledger import Session
from stratagem_psserver.limits import limited_total, limits_of
from stratagem_psserver.mutations import Staged
from stratagem_psserver.rpcs.steps import all_gradients, step_optimizer
from stratagem_psserver.state import ServerState


def stage_contribution(
    state: ServerState, header: pb.UpdateHeader, staged: Staged
) -> None:
    """Keeps one worker's part of a step; changes no variable."""
    program, limits = header.program.optimizer, limits_of(header)
    gradients = all_gradients(state, header, staged)
    # What cannot be stepped is the contributor's mistake: let it hear of it.
    state.optimizers.prepare(program, gradients)
    reservation = staged.reservation.hand_over()
    if header.HasField("backward"):
        kept = state.kept.of(staged.session.id, header.backward)
        reservation.absorb(kept.reservation)
    part = Part(
        session_id=staged.session.id,
        task=staged.session.label,
        contribution=header.contribution,
        program=program,
        gradients={gradient.variable: gradient for gradient in gradients},
        reservation=reservation,
        limits=limits,
        nonfinite_variable=header.nonfinite_variable,
    )
    try:
        state.rounds.stage(part)
    except Exception:
        part.reservation.release()
        raise


class ContributionRpcs:
    """CommitContribution."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def commit(self, request: pb.CommitContributionRequest) -> bytes:
        return await self._state.mutations.once(
            request.key, partial(self._commit, request.step)
        )

    async def _commit(
        self, mark: pb.StepMark, session: Session
    ) -> pb.CommitContributionResponse:
        if self._state.rounds.is_late(session.id, mark):
            self._state.clocks.dropped(mark.group, session.id)
            return pb.CommitContributionResponse(dropped=True)
        parts = self._state.rounds.commit(session.id, session.label, mark)
        if parts:
            await self._close(mark, parts)
        return pb.CommitContributionResponse()

    async def _close(self, mark: pb.StepMark, parts: Sequence[Part]) -> None:
        """Applies the sum of a step whose contributions are all there."""
        state = self._state
        failure: StratagemError | None = None
        names = [name for part in parts for name in part.gradients]
        try:
            async with state.changing(names):
                nbytes = sum(part.reservation.nbytes for part in parts)
                totalling = partial(limited_total, parts)
                gradients = await state.compute.run(totalling, nbytes)
                if gradients is None:
                    state.rounds.reject(mark)
                else:
                    await step_optimizer(state, parts[0].program, gradients)
        except BaseException as error:
            failure = from_record(to_record(error))
            raise
        finally:
            for part in parts:
                part.reservation.release()
            state.rounds.finish(mark, failure)
            state.groups_changed([mark.group])
