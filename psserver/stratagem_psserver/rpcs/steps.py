"""Applying update programs to variables whose locks are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.update_program_pb2 import GraphOutput, InputBinding
from stratagem_psserver.environment import LARGE_BYTES, TENSOR_BYTES
from stratagem_psserver.exactly_once.receiving import StagedTensors
from stratagem_psserver.optimization.gradients import Gradient, gather
from stratagem_psserver.optimization.kept_gradients import require_distinct
from stratagem_psserver.optimization.steps import ReadyStep
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import Binding, CompiledGraph
from stratagem_psserver.state import ServerState
from stratagem_psserver.variables.store import Variable, VariableStore

# A node of a graph with little data takes about as long as this many bytes of a large one.
_NODE_BYTES = 4 << 10

# So many multiplications take about as long as a byte of a large tensor.
_PRODUCTS_PER_BYTE = 4


def all_gradients(
    state: ServerState, header: pb.UpdateHeader, staged: StagedTensors
) -> list[Gradient]:
    """Return the gradients that were kept for a request, followed by its own.

    Raises:
        AbortedError: The gradients that were kept are gone.
    """
    gradients = gather(state.store, header.gradients, staged.tensors)
    if not header.HasField("backward"):
        return gradients
    kept = state.kept.of(staged.session.id, header.backward).gradients
    require_distinct(gradients, kept)
    return [*kept.values(), *gradients]


async def run_step(state: ServerState, step: ReadyStep) -> list[int]:
    """Run a step of an optimizer and return the new versions of its variables."""
    size = step.nbytes + len(step.variables) * TENSOR_BYTES
    await state.compute.run(step.run, size)
    return state.optimizers.commit(step)


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
