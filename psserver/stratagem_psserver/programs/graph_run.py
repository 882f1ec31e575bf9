"""Running graph programs: first on shapes alone, then on variables, which a failure restores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.graph_outputs import encode_output, spec_of_output
from stratagem_proto.programs.graph_program import check_output_size
from stratagem_proto.v1.update_program_pb2 import GraphOutput
from stratagem_proto.wire.tensors import total_nbytes
from stratagem_psserver.limits.stopping import PRESENT
from stratagem_psserver.programs.graphs import Binding, CompiledGraph, Reference, Step
from stratagem_psserver.programs.journal import Journal

_MAX_FOOTPRINTS = 256

# Nothing can interrupt an operation. So many multiplications take a core some minutes: two matrices
# of 10,000 rows and columns.
MAX_PRODUCTS = 1 << 40

Output = TypeVar("Output")


@dataclass(frozen=True)
class PreparedRun:
    """A program with bindings that fit it.

    Attributes:
        graph: The program.
        bindings: The values of its inputs. Variables are written in place.
        nbytes: An upper bound of the bytes that are allocated at a time, and of the size of views
            that are larger than the memory behind them.
        products: How many multiplications its products of matrices take.
    """

    graph: CompiledGraph
    bindings: Sequence[Binding]
    nbytes: int
    products: int

    def run(self) -> list[GraphOutput]:
        """Run the program; if it fails, the variables are restored.

        Returns:
            The outputs, which share no memory with variables.

        Raises:
            InvalidArgumentError: The values do not fit, for instance because an index is out of
                range or an integer is divided by zero.
            ResourceExhaustedError: There is not enough memory.
        """
        return self._completed(encode_output)

    def values(self) -> list[Any]:
        """Run the program as `run`, and return the outputs as they are: tensors and numbers.

        No two of them share memory, and none shares any with variables.
        """
        return self._completed(_apart)

    def _completed(self, given_back: Callable[[Any], Output]) -> list[Output]:
        journal = Journal(self.graph)
        values: Sequence[Any] = self.bindings
        try:
            with torch.no_grad():
                for _, found in _executed(self.graph, self.bindings, "cpu", journal):
                    values = found
                return [given_back(values[number]) for number in self.graph.outputs]
        except BaseException:
            journal.undo()
            raise


def prepare(graph: CompiledGraph, bindings: Sequence[Binding]) -> PreparedRun:
    """Check bindings, and compute how much memory a run takes without taking it.

    The program runs on tensors that have shapes and dtypes but no contents.

    Raises:
        InvalidArgumentError: The bindings do not fit the program, shapes or dtypes do not fit each
            other, the outputs are too large, or an operation takes too long.
    """
    graph.check_bindings(bindings)
    shapes = tuple((one.shape, one.stride()) for one in bindings if isinstance(one, torch.Tensor))
    # Another thread that runs the same program may clear the cache between two accesses.
    footprint = graph.footprints.get(shapes)
    if footprint is None:
        footprint = _footprint(graph, bindings)
        if len(graph.footprints) >= _MAX_FOOTPRINTS:
            graph.footprints.clear()
        graph.footprints[shapes] = footprint
    return PreparedRun(graph, bindings, *footprint)


def _footprint(graph: CompiledGraph, bindings: Sequence[Binding]) -> tuple[int, int]:
    """Return the bytes and the multiplications of a run."""
    shapes = [_without_contents(binding) for binding in bindings]
    journal, memory = Journal(graph), _Memory(graph, shapes)
    most = products = 0
    found: Sequence[Any] = shapes
    with torch.no_grad():
        for step, values in _executed(graph, shapes, "meta", journal):
            products += _products(step, values)
            largest = memory.allocate(step, values)
            most = max(most, memory.nbytes + journal.nbytes, largest)
            memory.release(step)
            found = values
    # Outputs exist twice: as tensors and as the bytes of the answer.
    return most + 2 * _output_nbytes(graph, found), products


def _products(step: Step, values: Sequence[Any]) -> int:
    """Return how many multiplications a step takes, if it multiplies matrices or vectors.

    Raises:
        InvalidArgumentError: They are too many for one operation.
    """
    if step.operation is None or not step.operation.is_product:
        return 0
    names = [argument.name for argument in step.operation.schema.arguments]
    given = dict(zip(names, step.arguments, strict=False)) | dict(step.keywords)
    tensors = [one for name in names if torch.is_tensor(one := _filled(given.get(name), values))]
    left, right = tensors[-2:]
    # A vector, and not the outer product of two.
    is_vector = right.dim() == 1 and not step.name.startswith("aten.addr")
    products = left.numel() * (1 if is_vector else right.shape[-1])
    if products > MAX_PRODUCTS:
        where = f"{step.location}: " if step.location else ""
        raise InvalidArgumentError(
            f"{where}{step.name}: a product of {list(left.shape)} and {list(right.shape)} takes "
            f"{products} multiplications, and one operation may take {MAX_PRODUCTS}, since nothing "
            "can interrupt it; multiply parts of the matrices one after the other",
            location=step.location,
        )
    return products


def _output_nbytes(graph: CompiledGraph, values: Sequence[Any]) -> int:
    nbytes = total_nbytes([spec_of_output(values[one]) for one in graph.outputs])
    check_output_size(nbytes)
    return nbytes


def _executed(
    graph: CompiledGraph, bindings: Sequence[Any], device: str, journal: Journal
) -> Iterator[tuple[Step, Sequence[Any]]]:
    """Run a program, and yield each step with the values so far."""
    values = [*bindings, *[None] * (len(graph.values) - len(bindings))]
    stop = PRESENT.get()
    for step in graph.steps:
        stop.check()
        arguments = [_filled(one, values) for one in step.arguments]
        keywords = {name: _filled(one, values) for name, one in step.keywords.items()}
        with step.located():
            journal.before(step, arguments, keywords)
            results = step.run(arguments, keywords, device)
        for number, result in zip(step.results, results, strict=True):
            values[number] = result
        yield step, values
        for number in step.released:
            values[number] = None
        # Released values must be freed before the next step allocates memory.
        del arguments, keywords, results


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    if isinstance(argument, Reference):
        return values[argument.number]
    if isinstance(argument, list):
        return [_filled(item, values) for item in argument]
    return argument


def _apart(value: Any) -> Any:
    return value.clone(memory_format=torch.contiguous_format) if torch.is_tensor(value) else value


def _without_contents(binding: Binding) -> Binding:
    if not isinstance(binding, torch.Tensor):
        return binding
    return torch.empty_strided(binding.shape, binding.stride(), dtype=binding.dtype, device="meta")


class _Memory:
    """Counts the bytes of results whose memory later steps still use."""

    def __init__(self, graph: CompiledGraph, bindings: Sequence[Binding]) -> None:
        self.nbytes = 0
        self._values = graph.values
        self._num_inputs = len(bindings)
        # By root: the size of its memory, and the number of results that use it.
        self._sizes = dict(enumerate(map(_nbytes, bindings)))
        self._users: Counter[int] = Counter()

    def allocate(self, step: Step, values: Sequence[Any]) -> int:
        """Count a step's results.

        Returns:
            The size of the largest result that is larger than the memory behind it, such as an
            expanded view. Operations on it take as long as its size says.
        """
        largest = 0
        for number in step.results:
            root, size = self._values[number].root, _nbytes(values[number])
            self._users[root] += 1
            if root == number:
                self._sizes[root] = size
                self.nbytes += size
            elif size > self._sizes[root]:
                largest = max(largest, size)
        return largest

    def release(self, step: Step) -> None:
        """Drop memory that no later step uses."""
        for number in step.released:
            root = self._values[number].root
            self._users[root] -= 1
            if not self._users[root] and root >= self._num_inputs:
                self.nbytes -= self._sizes[root]


def _nbytes(value: Any) -> int:
    """Return the bytes of all elements, even if they share memory."""
    if not isinstance(value, torch.Tensor):
        return 0
    return value.numel() * value.itemsize
