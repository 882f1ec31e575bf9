"""Running update programs on variables."""

from __future__ import annotations

from functools import partial

from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_psserver.gradients import gather
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
        state = self._state
        names = [gradient.variable for gradient in header.gradients]
        async with state.locks.holding(state.owners(names)):
            gradients = gather(state.store, header.gradients, staged.tensors)
            step = state.optimizers.prepare(header.program.optimizer, gradients)
            await state.compute.run(step.run, step.nbytes)
            return pb.UpdateResponse(versions=state.optimizers.commit(step))
