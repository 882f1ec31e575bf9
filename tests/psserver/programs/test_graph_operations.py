"""Each operation of the allow-list, run alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from stratagem_proto.programs.operations import OPERATIONS, Effect, Operation
from stratagem_proto.v1.update_program_pb2 import GraphInput
from stratagem_psserver.programs.graph_run import PreparedRun, prepare
from stratagem_psserver.programs.graphs import compile_graph
from tests.full import a_few
from tests.graph_programs import Argument, Ref, node, program, tensor, written


def floats(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) / 8


FLOATS, WHOLE = floats(2, 2), torch.tensor([[6, 5], [3, 2]])
MASK, ROWS = WHOLE > 4, torch.tensor([1, 0])
VECTOR, BATCH, SCALAR = floats(2), floats(2, 2, 2), floats()

BY_TYPE: dict[str, object] = {
    "Tensor": FLOATS,
    "List[Tensor]": [FLOATS, FLOATS + 1],
    "List[Optional[Tensor]]": [ROWS],
    "number": 0.5,
    "Optional[number]": 0.5,
    "float": 0.5,
    "int": 0,
    "List[int]": [0],
    "Optional[List[int]]": [0],
    "bool": False,
    "Optional[bool]": True,
    "str": "sum",
    "Optional[str]": "floor",
}

# Where the type does not say enough, by the start of the operation's name.
OWN: dict[str, dict[str, object]] = {
    "_unsafe_view": {"size": [4]},
    "addbmm": {"batch1": BATCH, "batch2": BATCH},
    "addmv": {"self": VECTOR, "vec": VECTOR},
    "addr": {"vec1": VECTOR, "vec2": VECTOR},
    "baddbmm": {"self": BATCH, "batch1": BATCH, "batch2": BATCH},
    "bitwise": {"self": WHOLE},
    "bitwise_and.Tensor": {"other": WHOLE},
    "bitwise_and.Scalar": {"other": 3},
    "bitwise_or.Tensor": {"other": WHOLE},
    "bitwise_or.Scalar": {"other": 3},
    "bitwise_xor.Tensor": {"other": WHOLE},
    "bitwise_xor.Scalar": {"other": 3},
    "bmm": {"self": BATCH, "mat2": BATCH},
    "clamp.Tensor": {"min": FLOATS},
    "clamp.default": {"min": 0.5},
    "constant_pad_nd": {"pad": [1, 1]},
    "dot": {"self": VECTOR, "tensor": VECTOR},
    "expand": {"self": floats(2, 1), "size": [2, 3]},
    "fill.Tensor": {"value": SCALAR},
    "gather": {"index": ROWS[None]},
    "index_add": {"index": ROWS, "source": FLOATS},
    "index_copy": {"index": ROWS, "source": FLOATS},
    "index_select": {"index": ROWS},
    "masked_fill": {"mask": MASK},
    "masked_fill.Tensor": {"mask": MASK, "value": SCALAR},
    "mv": {"vec": VECTOR},
    "permute": {"dims": [1, 0]},
    "repeat": {"repeats": [2, 1]},
    "scatter": {"index": ROWS[None]},
    "view": {"size": [4]},
    "where": {"condition": MASK},
    "zeros.": {"size": [3, 2]},
    "ones.": {"size": [3, 2]},
    "full.": {"size": [3, 2]},
}


def sample(operation: Operation) -> dict[str, object]:
    plain = operation.name.removeprefix("aten.").replace("_.", ".")
    arguments = {
        parameter.name: BY_TYPE[parameter.type]
        for parameter in operation.parameters
        if parameter.required
    }
    for start, own in OWN.items():
        if plain.startswith(start):
            arguments |= own
    return arguments


def copied(value: object) -> object:
    if isinstance(value, list):
        return [copied(one) for one in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def called(operation: Operation) -> list[torch.Tensor]:
    """The results of calling an operation directly."""
    arguments = {name: copied(value) for name, value in sample(operation).items()}
    outcome = operation.overload(**arguments)
    return list(outcome) if isinstance(outcome, tuple) else [outcome]  # type: ignore[list-item]


class AsProgram:
    """A program of one operation whose first result is added to a variable.

    The operation writes its first argument in place if that is its effect.
    """

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.inputs: list[torch.Tensor] = []
        self.result = called(operation)[0]
        self.total = torch.zeros(self.result.shape, dtype=torch.float64)

    def prepared(self) -> PreparedRun:
        arguments = {name: self._argument(value) for name, value in sample(self.operation).items()}
        first = 1 + len(self.inputs)
        graph = compile_graph(
            program(
                [written(torch.float64), *self._sources()],
                node(self.operation.name, **arguments),
                node("aten.add_.Tensor", Ref(0), Ref(first)),
            )
        )
        return prepare(graph, [self.total, *self.inputs])

    def _sources(self) -> Iterator[GraphInput]:
        writes = self.operation.effect is Effect.WRITE
        for number, one in enumerate(self.inputs):
            yield (written if writes and not number else tensor)(one.dtype)

    def _argument(self, value: object) -> Argument:
        if isinstance(value, list):
            return [self._argument(one) for one in value]
        if isinstance(value, torch.Tensor):
            self.inputs.append(value.clone())
            return Ref(len(self.inputs))
        return value  # type: ignore[return-value]


NEW = [one for one in OPERATIONS.values() if one.effect is Effect.NEW]
NAME: Callable[[Operation], str] = lambda operation: operation.name  # noqa: E731
# Every fourth, then the one after each of these, and so on: those that are alike are neighbours.
MIXED = [one for start in range(4) for one in [*OPERATIONS.values()][start::4]]


@a_few("operation", MIXED, "operations that are alike take the same path", 90, ids=NAME)
def test_an_operation_gives_in_a_program_what_it_gives_alone(
    operation: Operation,
) -> None:
    single = AsProgram(operation)
    single.prepared().run()
    torch.testing.assert_close(single.total, single.result.double(), rtol=0, atol=0, equal_nan=True)


@a_few("operation", NEW, "operations of a kind are foreseen by one rule", 50, ids=NAME)
def test_the_memory_of_an_operations_results_is_foreseen(operation: Operation) -> None:
    results = called(operation)
    assert AsProgram(operation).prepared().nbytes == sum(one.nbytes for one in results)
