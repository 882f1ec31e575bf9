"""The RPCs that run update programs on variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.graph_program import check_output_size
from stratagem_proto.protocol import session_name
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import GraphOutput, InputBinding
from stratagem_proto.wire.segment import Segment
from stratagem_proto.wire.tensors import total_nbytes
from stratagem_psserver.environment import LARGE_BYTES
from stratagem_psserver.exactly_once.receiving import Chunks, Manifest, StagedTensors
from stratagem_psserver.fast.plans import CachedPlan, StepPlan
from stratagem_psserver.optimization.gradients import (
    decode_gradients,
    decoded_specs,
    gather,
)
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import Binding, CompiledGraph
from stratagem_psserver.rpcs.steps import all_gradients, begun_now, run_step, stage_contribution
from stratagem_psserver.rpcs.values import Frames, ReadTask, frames_of
from stratagem_psserver.state import ServerState
from stratagem_psserver.synchronous.contributions import limited, limits_of
from stratagem_psserver.variables.locks import LockUse
from stratagem_psserver.variables.store import Variable, VariableStore

# A node of a graph with little data takes about as long as this many bytes of a large one.
_NODE_BYTES = 4 << 10

# So many multiplications take about as long as a byte of a large tensor.
_PRODUCTS_PER_BYTE = 4


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
        state, then = self._state, header.then
        selections, joint_rows = then.selections, then.joint_rows
        known = state.plans.recognise(header, chunks.text)
        update = await self._apply_once(header, chunks, known)
        # The call was authenticated with the update; its session may have ended since.
        session = state.ledger.session(session_name(header.key.session_id), state.clock())
        grants = begun_now(state, session, then.begins)

        def make_header(values: pb.ReadHeader) -> pb.UpdateAndReadHeader:
            values.reached = state.changes.reached
            return pb.UpdateAndReadHeader(update=update, values=values, grants=grants)

        if known is None:
            plan = partial(state.read_plans.plan, selections, joint_rows)
        else:
            plan = partial(known.plan.read_plan, state.store, selections, joint_rows)
        request, announced = type(header).__name__, then.announced_rows
        reading = ReadTask(plan, selections, segment, session, request, joint_rows, announced)
        return frames_of(state, reading, make_header)

    async def _apply_once(
        self, header: pb.UpdateHeader, chunks: Chunks, known: CachedPlan | None
    ) -> pb.UpdateResponse:
        if known is not None:
            plan, manifest = known
        else:
            is_later = header.HasField("contribution") or header.backward.keep
            borrows = header.program.WhichOneof("kind") == "optimizer" and not is_later
            derived = decoded_specs(header.gradients)
            plan, manifest = None, Manifest(header.tensors, derived, borrows, header.splits)
        apply = partial(self._apply, header, plan)
        return await self._state.mutations.apply_once(
            header, manifest, chunks, apply, pb.UpdateResponse
        )

    async def _apply(
        self, header: pb.UpdateHeader, plan: StepPlan | None, staged: StagedTensors
    ) -> pb.UpdateResponse:
        state, session_id = self._state, staged.session.id
        if plan is not None:
            repeated = await self._repeat(header, plan, staged)
            return repeated or await self._step(header, staged, plan)
        kind = header.program.WhichOneof("kind")
        if kind == "graph":
            ran = await self._run_graph(header, staged)
            return pb.UpdateResponse(versions=ran.versions, outputs=ran.outputs)
        if kind is None and not header.backward.keep:
            raise InvalidArgumentError("the update has no program")

        if specs := decoded_specs(header.gradients):
            decoding = partial(decode_gradients, header.gradients, staged.tensors)
            tensors = await state.compute.run(decoding, total_nbytes(specs))
            staged = replace(staged, tensors=tensors)
        if header.backward.keep:
            gradients = gather(state.store, header.gradients, staged.tensors)
            record = state.changes.present
            state.kept.keep(session_id, header.backward, gradients, staged.reservation, record)
            return pb.UpdateResponse()
        if header.HasField("contribution"):
            await stage_contribution(state, header, staged)
            response = pb.UpdateResponse()
        else:
            response = await self._step(header, staged)
        if header.HasField("backward"):
            state.kept.drop(session_id, header.backward)
        return response

    async def _step(
        self, header: pb.UpdateHeader, staged: StagedTensors, plan: StepPlan | None = None
    ) -> pb.UpdateResponse:
        """Check a step in full, and take it; from then on its plan can repeat it."""
        state, program = self._state, header.program.optimizer
        gradients = all_gradients(state, header, staged)
        names = [gradient.variable for gradient in gradients]
        async with state.changing(names, LockUse(staged.session.label, "update")):
            if limits := limits_of(header):
                # This refuses gradients that do not fit their variables, before their values are
                # read.
                state.optimizers.prepare(program, gradients)
                nbytes = sum(each.value.nbytes for each in gradients)
                within = await state.compute.run(partial(limited, gradients, limits), nbytes)
                if within is None:
                    versions = [state.store.get(name).version for name in names]
                    return pb.UpdateResponse(versions=versions, rejected=True)
                gradients = within
            step = state.optimizers.prepare(program, gradients)
            versions = await run_step(state, step)
            if plan is not None:
                state.plans.learn(plan, step)
            return pb.UpdateResponse(versions=versions)

    async def _repeat(
        self, header: pb.UpdateHeader, plan: StepPlan, staged: StagedTensors
    ) -> pb.UpdateResponse | None:
        """Repeat a step that was run before; return None if it has to be checked in full."""
        state, program = self._state, header.program.optimizer
        owners, use = partial(plan.owners, state.store), LockUse(staged.session.label, "update")
        async with state.changing_owners(owners, use):
            step = plan.step if plan.holds(state.store) else None
            if step is None:
                return None
            if not step.begin(state.optimizers, program, plan.gradients(staged)):
                return None
            return pb.UpdateResponse(versions=await run_step(state, step))

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
        async with state.changing(names, LockUse(staged.session.label, "update")):
            return await run_graph(state, graph, header.bindings, staged)


class GraphResult(NamedTuple):
    """The results of a graph program.

    Attributes:
        versions: The new versions of the variables that it wrote.
        outputs: The values that it returned.
    """

    versions: list[int]
    outputs: list[GraphOutput]


async def run_graph(
    state: ServerState,
    graph: CompiledGraph,
    bindings: Sequence[InputBinding],
    staged: StagedTensors,
) -> GraphResult:
    """Run a graph program.

    Raises:
        InvalidArgumentError: It needs more bytes than one client may have of the budget for
            requests, or returns more than can be recorded with an answer.
        ResourceExhaustedError: Too much of the budget, or of the client's share, is in use.
    """
    written = _written(state.store, graph, bindings)
    values = [_bound(state.store, binding, staged) for binding in bindings]
    nodes = len(graph.steps) * _NODE_BYTES
    # For the first run of an operation torch may load modules, which takes seconds.
    unknown = 0 if graph.footprints else LARGE_BYTES
    prepared = await state.compute.run(lambda: prepare(graph, values), nodes + unknown)
    # State that a rule gives back is not: it stays on the server, at any size.
    check_output_size(prepared.output_nbytes)
    if prepared.nbytes > state.budget.largest:
        # Repeating the request would not help, as it would if the budget were in use.
        raise InvalidArgumentError(
            f"the update program needs {prepared.nbytes} bytes; this server gives one client at "
            f"most {state.budget.largest} of its budget of {state.budget.limit} bytes. Write "
            "intermediate results in place, or start it with a larger --staged-bytes"
        )
    with state.budget.reserve(prepared.nbytes, "the update program", staged.session.label):
        size = nodes + prepared.nbytes + sum(each.value.nbytes for each in written)
        size += prepared.products // _PRODUCTS_PER_BYTE
        outputs = await state.compute.run(prepared.run, size)
    for variable in written:
        variable.version += 1
    return GraphResult([variable.version for variable in written], outputs)


def _written(
    store: VariableStore, graph: CompiledGraph, bindings: Sequence[InputBinding]
) -> list[Variable]:
    names = [bindings[number].variable for number in graph.written if number < len(bindings)]
    if not all(names):
        raise InvalidArgumentError(
            "an update program can only write variables of this server; bind tensors and "
            "numbers to inputs that it only reads"
        )
    return [store.get(name) for name in names]


def _bound(store: VariableStore, binding: InputBinding, staged: StagedTensors) -> Binding:
    match binding.WhichOneof("kind"):
        case "variable":
            return _whole(store.get(binding.variable))
        case "tensor":
            if binding.tensor < len(staged.tensors):
                return staged.tensors[binding.tensor]
            raise InvalidArgumentError(
                f"the update binds tensor {binding.tensor} of {len(staged.tensors)}"
            )
        case "flag":
            return binding.flag
        case "integer":
            return binding.integer
        case "number":
            return binding.number
    raise InvalidArgumentError("nothing is bound to an input of the update program")


def _whole(variable: Variable) -> torch.Tensor:
    if variable.arena is not None:
        raise InvalidArgumentError(
            f"{variable.name!r} is a table, which update programs neither read nor "
            "write; assign its rows, or step it by an optimizer",
            variable=variable.name,
        )
    return variable.value
