"""Running update programs on variables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.contributions import Part, total
from stratagem_psserver.gradients import Gradient, gather
from stratagem_psserver.ledger import Session
from stratagem_psserver.mutations import Chunks, Staged
from stratagem_psserver.state import ServerState


class UpdateRpcs:
    """Update, UpdateNonSlot and CommitContribution."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def update(self, header: pb.UpdateHeader, chunks: Chunks) -> bytes:
        return await self._state.mutations.once_staged(
            header.key, header.tensors, chunks, partial(self._update, header)
        )

    async def _update(
        self, header: pb.UpdateHeader, staged: Staged
    ) -> pb.UpdateResponse:
        if header.program.WhichOneof("kind") != "optimizer":
            raise InvalidArgumentError("the update has no program")
        if header.HasField("contribution"):
            return self._stage(header, staged)
        program = header.program.optimizer
        names = [gradient.variable for gradient in header.gradients]
        async with self._state.locked(names):
            gradients = gather(self._state.store, header.gradients, staged.tensors)
            return pb.UpdateResponse(versions=await self._step(program, gradients))

    async def _step(
        self, program: OptimizerProgram, gradients: Sequence[Gradient]
    ) -> list[int]:
        step = self._state.optimizers.prepare(program, gradients)
        await self._state.compute.run(step.run, step.nbytes)
        return self._state.optimizers.commit(step)

    def _stage(self, header: pb.UpdateHeader, staged: Staged) -> pb.UpdateResponse:
        state = self._state
        gradients = gather(state.store, header.gradients, staged.tensors)
        # What cannot be stepped is the contributor's mistake: let it hear of it.
        state.optimizers.prepare(header.program.optimizer, gradients)
        part = Part(
            staged.session.id,
            staged.session.label,
            header.contribution,
            header.program.optimizer,
            {gradient.variable: gradient for gradient in gradients},
            staged.reservation.hand_over(),
        )
        try:
            state.rounds.stage(part)
        except Exception:
            part.reservation.release()
            raise
        return pb.UpdateResponse()

    async def commit(self, request: pb.CommitContributionRequest) -> bytes:
        return await self._state.mutations.once(
            request.key, partial(self._commit, request.step)
        )

    async def _commit(
        self, mark: pb.StepMark, session: Session
    ) -> pb.CommitContributionResponse:
        parts = self._state.rounds.commit(session.id, session.label, mark)
        if parts:
            await self._close(mark, parts)
        return pb.CommitContributionResponse()

    async def _close(self, mark: pb.StepMark, parts: Sequence[Part]) -> None:
        """Applies the sum of a step whose contributions are all there."""
        state, failure = self._state, ""
        names = [name for part in parts for name in part.gradients]
        try:
            async with state.locked(names):
                nbytes = sum(
                    g.value.nbytes for p in parts for g in p.gradients.values()
                )
                gradients = await state.compute.run(partial(total, parts), nbytes)
                await self._step(parts[0].program, gradients)
        except Exception as error:
            failure = str(error)
            raise
        finally:
            for part in parts:
                part.reservation.release()
            state.rounds.finish(mark, failure)
            state.waits.changed(("group", mark.group))
