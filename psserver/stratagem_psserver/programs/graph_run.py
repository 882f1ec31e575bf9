"""Running graph programs: first on shapes alone, then on variables, which a failure restores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.graph_program import encode_output, spec_of_output
from stratagem_proto.programs.operations import Operation
from stratagem_proto.v1.update_program_pb2 import GraphOutput
from stratagem_proto.wire.tensors import total_nbytes
from stratagem_psserver.limits import PRESENT
from stratagem_psserver.programs.graphs import Binding, CompiledGraph, Reference, Step, references


class Journal:
    """Saves what the steps of a run overwrite in variables.

    Call `before` for each step, and `undo` if the run fails. A variable that is written whole is
    saved once; of one that is written by index, only the touched elements are saved.

    Attributes:
        nbytes: The bytes that are saved.
    """

    def __init__(self, graph: CompiledGraph) -> None:
        self.nbytes = 0
        self._graph = graph
        self._changing = {step.writes for step in graph.steps} - {None}
        self._saved_whole: set[int] = set()
        self._restores: list[Callable[[], object]] = []

    def before(self, step: Step, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Save what a step will overwrite."""
        if step.operation is None or step.writes not in self._graph.written:
            return
        names = [argument.name for argument in step.operation.schema.arguments]
        given = dict(zip(names, arguments, strict=False)) | dict(keywords)
        if self._is_safe(step, step.operation, given["self"]):
            return
        if step.operation.indexed and not self._indices_change(step):
            self._save(*_TOUCHED[step.operation.name.split(".")[1]](given))
            return
        target = given["self"]
        self._save(target.clone(), target.copy_)
        if step.arguments and step.arguments[0] == Reference(step.writes):
            self._saved_whole.add(step.writes)

    def undo(self) -> None:
        """Restore all that was overwritten."""
        with torch.no_grad():
            while self._restores:
                self._restores.pop()()

    def _save(self, saved: torch.Tensor, restore: Callable[[torch.Tensor], object]) -> None:
        self.nbytes += saved.numel() * saved.itemsize
        self._restores.append(lambda: restore(saved))

    def _is_safe(self, step: Step, operation: Operation, target: torch.Tensor) -> bool:
        """Return whether variables can be restored after a failure without another copy."""
        if step.writes in self._saved_whole:
            return True
        # Floating-point kernels without an index check their arguments before they write; integer
        # ones may fail at a division by zero after some elements are written.
        whole = target.is_floating_point() and not operation.indexed
        # Outputs are copied after the last step, which may fail, too.
        return whole and step is self._graph.steps[-1] and not self._graph.outputs

    def _indices_change(self, step: Step) -> bool:
        operands = (*step.arguments[1:], *step.keywords.values())
        return any(
            self._graph.values[number].root in self._changing for number in references(operands)
        )


Saved = tuple[torch.Tensor, Callable[[torch.Tensor], object]]


def _touched_rows(given: Mapping[str, Any]) -> Saved:
    target, dim, index = given["self"], given["dim"], given["index"]
    saved = target.index_select(dim, index)
    return saved, lambda rows: target.index_copy_(dim, index, rows)


def _touched_by_scatter(given: Mapping[str, Any]) -> Saved:
    target, dim, index = given["self"], given["dim"], given["index"]
    return target.gather(dim, index), lambda old: target.scatter_(dim, index, old)


def _touched_by_put(given: Mapping[str, Any]) -> Saved:
    target, indices = given["self"], given["indices"]
    saved = torch.ops.aten.index.Tensor(target, indices)
    return saved, lambda old: torch.ops.aten.index_put_.default(target, indices, old)


# By indexed operation: returns what it overwrites, and a function that restores it.
_TOUCHED: Mapping[str, Callable[[Mapping[str, Any]], Saved]] = {
    "index_add_": _touched_rows,
    "index_copy_": _touched_rows,
    "index_put_": _touched_by_put,
    "scatter_": _touched_by_scatter,
    "scatter_add_": _touched_by_scatter,
    "scatter_reduce_": _touched_by_scatter,
}


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
        output_nbytes: Bytes of its outputs.
    """

    graph: CompiledGraph
    bindings: Sequence[Binding]
    nbytes: int
    products: int
    output_nbytes: int

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
        contiguous = torch.contiguous_format
        return self._completed(
            lambda one: one.clone(memory_format=contiguous) if torch.is_tensor(one) else one
        )

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
            other, or an operation takes too long.
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


def _footprint(graph: CompiledGraph, bindings: Sequence[Binding]) -> tuple[int, int, int]:
    """Return the bytes, the multiplications and the bytes of the outputs of a run."""
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
    nbytes = total_nbytes([spec_of_output(found[one]) for one in graph.outputs])
    return most + 2 * nbytes, products, nbytes


def _products(step: Step, values: Sequence[Any]) -> int:
    """Return how many multiplications a step takes, if it multiplies matrices or vectors."""
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
