"""The RPCs that read and assign values."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from stratagem_proto.errors import DeadlineExceededError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.variable_requests_pb2 import AssignHeader, AssignResponse
from stratagem_proto.wire.segment import Segment
from stratagem_psserver.environment import TENSOR_BYTES
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.receiving import Chunks, StagedTensors
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.rpcs.answers import ReadTask, frames_of
from stratagem_psserver.rpcs.consistency import begun_now, report_inputs
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.assignments import PreparedWrite, prepare, run
from stratagem_psserver.variables.held_snapshots import HeldSnapshot
from stratagem_psserver.variables.locks import LockUse
from stratagem_psserver.variables.read_plans import ReadPlan


class ValueRpcs:
    """Read and Assign."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def read(
        self, request: pb.ReadRequest, segment: Segment | None = None
    ) -> AsyncGenerator[bytes, None]:
        state = self._state
        if not request.into_segment:
            segment = None
        session = state.finished(request.session_id, request.finished, request.report)
        report_inputs(state, session, request.inputs)
        grants = begun_now(state, session, request.begins)
        if request.HasField("after"):
            await self._wait(session, request.after, request.wait_seconds)
        variables = state.variables(session.id, request.snapshot)
        selections, joint_rows = request.selections, request.joint_rows

        def make_header(header: pb.ReadHeader) -> pb.ReadHeader:
            header.rejected_steps = state.rounds.rejected(request.after.group)
            header.grants.extend(grants)
            header.reached = state.changes.reached
            return header

        def plan() -> ReadPlan:
            if isinstance(variables, HeldSnapshot):
                return ReadPlan.of(variables, selections).with_rows(variables, joint_rows)
            return state.read_plans.of(selections, joint_rows)

        reading = ReadTask(plan, selections, segment, session, "ReadRequest", joint_rows)
        frames = frames_of(state, reading, make_header)
        if isinstance(frames, bytes):
            yield frames
            return
        async with aclosing(frames):
            async for frame in frames:
                yield frame

    async def _wait(self, session: Session, mark: pb.StepMark, seconds: float) -> None:
        state = self._state

        def applied() -> bool | None:
            state.inputs.require_alike(session)
            return state.rounds.is_applied(mark, session.id)

        if applied():
            return
        waiter = state.step_waiter(session, mark)
        if not await state.waits.until(("group", mark.group), applied, seconds, waiter):
            state.rounds.require_finished(mark)
            raise DeadlineExceededError(
                f"step {mark.step} of {mark.group!r} was not applied in {seconds:g} s: "
                f"{state.rounds.missing(mark)}. It waits for {state.explained(waiter)}"
            )

    async def assign(self, header: AssignHeader, chunks: Chunks) -> AssignResponse:
        return await self._state.mutations.apply_once(
            header,
            Manifest(header.tensors, borrows=True),
            chunks,
            partial(self._assign, header),
            AssignResponse,
        )

    async def _assign(self, header: AssignHeader, staged: StagedTensors) -> AssignResponse:
        state = self._state
        names = [assignment.variable for assignment in header.assignments]
        async with state.changing(names, LockUse(staged.session.label, "assignment")):
            writes = prepare(state.store, header.assignments, staged.tensors)
            size = sum(write.value.nbytes + TENSOR_BYTES for write in writes)
            await state.compute.run(partial(run, writes, state.store.memory_limit), size)
            return AssignResponse(versions=[_next_version(write) for write in writes])


def _next_version(write: PreparedWrite) -> int:
    write.variable.version += 1
    return write.variable.version
