"""The RPCs that run update programs on variables."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import total_nbytes
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.receiving import Chunks, StagedTensors
from stratagem_psserver.fast.plans import Recognised, StepPlan
from stratagem_psserver.optimization.gradients import (
    Gradient,
    decode_gradients,
    decoded_specs,
    gather,
)
from stratagem_psserver.rpcs.answers import Frames, ReadTask, frames_of
from stratagem_psserver.rpcs.consistency import begun_now
from stratagem_psserver.rpcs.contributions import stage_contribution
from stratagem_psserver.rpcs.steps import GraphResult, all_gradients, run_graph, run_step
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.contributions import limited, limits_of
from stratagem_psserver.variables.locks import LockUse


class UpdateRpcs:
    """Update, UpdateNonSlot and UpdateAndRead."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def update(self, header: pb.UpdateHeader, chunks: Chunks) -> pb.UpdateResponse:
        """Apply an update."""
        known = self._state.plans.recognise(header, chunks.text)
        return await self._apply_once(header, chunks, known)

    async def update_and_read(
        self, header: pb.UpdateHeader, chunks: Chunks, segment: Segment | None = None
    ) -> Frames:
        """Apply an update and return the values that the next step needs."""
        if header.HasField("contribution") or header.backward.keep:
            raise InvalidArgumentError(
                "UpdateAndRead is for updates that are applied at once; send contributions and "
                "gradients to be kept by Update"
            )
        state, selections, joint_rows = self._state, header.then.selections, header.then.joint_rows
        known = state.plans.recognise(header, chunks.text)
        update = await self._apply_once(header, chunks, known)
        session = state.session(header.key.session_id)
        grants = begun_now(state, session, header.then.begins)

        def make_header(values: pb.ReadHeader) -> pb.UpdateAndReadHeader:
            values.reached = state.changes.reached
            return pb.UpdateAndReadHeader(update=update, values=values, grants=grants)

        if known is None:
            plan = partial(state.read_plans.of, selections, joint_rows)
        else:
            plan = partial(known.plan.read_plan, state.store, selections, joint_rows)
        reading = ReadTask(plan, selections, segment, session, type(header).__name__, joint_rows)
        return frames_of(state, reading, make_header)

    async def _apply_once(
        self, header: pb.UpdateHeader, chunks: Chunks, known: Recognised | None
    ) -> pb.UpdateResponse:
        return await self._state.mutations.apply_once(
            header,
            _manifest(header) if known is None else known.manifest,
            chunks,
            partial(self._apply, header, None if known is None else known.plan),
            pb.UpdateResponse,
        )

    async def _apply(
        self, header: pb.UpdateHeader, plan: StepPlan | None, staged: StagedTensors
    ) -> pb.UpdateResponse:
        if plan is not None:
            repeated = await self._repeat(header, plan, staged)
            return repeated or await self._step(header, staged, plan)
        if header.program.WhichOneof("kind") == "graph":
            ran = await self._run_graph(header, staged)
            return pb.UpdateResponse(versions=ran.versions, outputs=ran.outputs)
        if header.program.WhichOneof("kind") is None and not header.backward.keep:
            raise InvalidArgumentError("the update has no program")
        staged = await self._decoded(header, staged)
        response = await self._step_or_keep(header, staged)
        if header.HasField("backward") and not header.backward.keep:
            self._state.kept.drop(staged.session.id, header.backward)
        return response

    async def _step_or_keep(
        self, header: pb.UpdateHeader, staged: StagedTensors
    ) -> pb.UpdateResponse:
        state = self._state
        if header.backward.keep:
            gradients = gather(state.store, header.gradients, staged.tensors)
            session, record = staged.session.id, state.changes.present
            state.kept.keep(session, header.backward, gradients, staged.reservation, record)
            return pb.UpdateResponse()
        if header.HasField("contribution"):
            await stage_contribution(state, header, staged)
            return pb.UpdateResponse()
        return await self._step(header, staged)

    async def _decoded(self, header: pb.UpdateHeader, staged: StagedTensors) -> StagedTensors:
        specs = decoded_specs(header.gradients)
        if not specs:
            return staged
        decoding = partial(decode_gradients, header.gradients, staged.tensors)
        nbytes = total_nbytes(specs)
        tensors = await self._state.compute.run(decoding, nbytes)
        return replace(staged, tensors=tensors)

    async def _step(
        self, header: pb.UpdateHeader, staged: StagedTensors, plan: StepPlan | None = None
    ) -> pb.UpdateResponse:
        state = self._state
        gradients = all_gradients(state, header, staged)
        names = [gradient.variable for gradient in gradients]
        async with state.changing(names, _use(staged)):
            within = await self._limited(header, gradients)
            if within is None:
                versions = [state.store.get(name).version for name in names]
                return pb.UpdateResponse(versions=versions, rejected=True)
            step = state.optimizers.prepare(header.program.optimizer, within)
            versions = await run_step(state, step)
            if plan is not None:
                state.plans.learn(plan, step)
            return pb.UpdateResponse(versions=versions)

    async def _repeat(
        self, header: pb.UpdateHeader, plan: StepPlan, staged: StagedTensors
    ) -> pb.UpdateResponse | None:
        """Repeat a step that was run before; return None if it has to be checked in full."""
        state, program = self._state, header.program.optimizer
        async with state.changing_owners(partial(plan.owners, state.store), _use(staged)):
            step = plan.step if plan.holds(state.store) else None
            if step is None:
                return None
            if not step.begin(state.optimizers, program, plan.gradients(staged)):
                return None
            return pb.UpdateResponse(versions=await run_step(state, step))

    async def _limited(
        self, header: pb.UpdateHeader, gradients: list[Gradient]
    ) -> list[Gradient] | None:
        limits = limits_of(header)
        if not limits:
            return gradients
        # This refuses gradients that do not fit their variables, before their values are read.
        self._state.optimizers.prepare(header.program.optimizer, gradients)
        nbytes = sum(each.value.nbytes for each in gradients)
        limiting = partial(limited, gradients, limits)
        return await self._state.compute.run(limiting, nbytes)

    async def update_non_slot(
        self, header: pb.UpdateHeader, chunks: Chunks
    ) -> pb.UpdateNonSlotResponse:
        return await self._state.mutations.apply_once(
            header,
            Manifest(header.tensors, splits=header.splits),
            chunks,
            partial(self._update_non_slot, header),
            pb.UpdateNonSlotResponse,
        )

    async def _update_non_slot(
        self, header: pb.UpdateHeader, staged: StagedTensors
    ) -> pb.UpdateNonSlotResponse:
        if header.program.WhichOneof("kind") != "graph":
            raise InvalidArgumentError(
                "UpdateNonSlot runs graph programs; send optimizer programs by Update"
            )
        ran = await self._run_graph(header, staged)
        return pb.UpdateNonSlotResponse(versions=ran.versions, outputs=ran.outputs)

    async def _run_graph(self, header: pb.UpdateHeader, staged: StagedTensors) -> GraphResult:
        if header.HasField("contribution"):
            raise InvalidArgumentError(
                "a contribution to a synchronous step carries an optimizer program, not a graph"
            )
        state, program = self._state, header.program.graph
        compiling = partial(state.graphs.compiled, program)
        graph = await state.compute.run(compiling, program.ByteSize())
        names = [each.variable for each in header.bindings if each.variable]
        async with state.changing(names, _use(staged)):
            return await run_graph(state, graph, header.bindings, staged)


def _use(staged: StagedTensors) -> LockUse:
    return LockUse(staged.session.label, "update")


def _manifest(header: pb.UpdateHeader) -> Manifest:
    derived = decoded_specs(header.gradients)
    return Manifest(header.tensors, derived, _is_applied_at_once(header), header.splits)


def _is_applied_at_once(header: pb.UpdateHeader) -> bool:
    later = header.HasField("contribution") or header.backward.keep
    return header.program.WhichOneof("kind") == "optimizer" and not later
