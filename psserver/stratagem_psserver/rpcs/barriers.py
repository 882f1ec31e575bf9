"""Waiting for other tasks."""

from __future__ import annotations

from functools import partial

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1.barrier_pb2 import BarrierRequest, BarrierResponse
from stratagem_psserver.state import ServerState
from stratagem_psserver.waiting.listing import listed


class BarrierRpcs:
    """Barrier."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def wait(self, request: BarrierRequest) -> BarrierResponse:
        state, name, generation = self._state, request.name, request.generation
        session = state.session(request.session_id)
        state.barriers.arrive(
            name, generation, request.num_tasks, session.label, session.id
        )
        subject = ("barrier", name)
        state.waits.changed(subject)
        passed = partial(state.barriers.is_passed, name, generation, session.id)
        if await state.waits.until(subject, passed, request.wait_seconds):
            return BarrierResponse()
        raise DeadlineExceededError(
            f"barrier {name!r} did not open in {request.wait_seconds:g} s: "
            f"{request.num_tasks} tasks must come, there are "
            f"{listed(state.barriers.arrived(name)) or 'none'}"
        )
