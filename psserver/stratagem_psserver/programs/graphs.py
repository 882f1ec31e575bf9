"""Compiled graph programs, and the cache of them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError, StratagemError
from stratagem_proto.programs.graph_program import Value, check_graph, check_size, digest
from stratagem_proto.programs.operations import (
    ITEM,
    OPERATIONS,
    Effect,
    Operation,
    check_index_types,
    evaluate_scalar,
)
from stratagem_proto.v1.update_program_pb2 import GraphArgument, GraphInput, GraphNode, GraphProgram
from stratagem_proto.wire.tensors import decode_dtype, is_out_of_memory
from stratagem_psserver.limits import LruCache

Binding = torch.Tensor | int | float


@dataclass(frozen=True)
class Reference:
    """A numbered value, as an argument of a step."""

    number: int


@dataclass(frozen=True, eq=False)
class Step:
    """One node of a program, decoded.

    Attributes:
        name: The name of the operation.
        operation: The operation; None for arithmetic on numbers.
        arguments: The positional arguments, with a `Reference` for each value.
        keywords: The keyword arguments, likewise.
        results: The numbers of the results.
        writes: The root of the memory that the step writes, or None.
        released: The values that no later step uses.
        location: The place in the client's source.
    """

    name: str
    operation: Operation | None
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: range
    writes: int | None
    released: tuple[int, ...]
    location: str

    def run(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], device: str
    ) -> Sequence[Any]:
        """Return the results of the step for arguments without references."""
        if self.name == ITEM:
            return [_item(arguments[0])]
        if self.operation is None:
            return [evaluate_scalar(self.name, *arguments)]
        check_index_types(self.operation, arguments)
        check_division(self.operation, arguments, keywords)
        placement = {"device": device} if self.operation.takes_device else {}
        outcome: Any = self.operation.overload(*arguments, **keywords, **placement)
        return outcome if isinstance(outcome, tuple) else [outcome]

    @contextmanager
    def located(self) -> Iterator[None]:
        """Turn errors of torch and Python into errors that name the place in the source."""
        try:
            yield
        except Exception as error:
            raise self._located(error) from error

    def _located(self, error: Exception) -> StratagemError:
        where = f"{self.location}: " if self.location else ""
        if is_out_of_memory(error):
            return ResourceExhaustedError(
                f"{where}{self.name}: the server has not enough memory for the result; "
                "update fewer or smaller variables at a time",
                location=self.location,
            )
        first = (str(error) or type(error).__name__).splitlines()[0]
        return InvalidArgumentError(f"{where}{self.name}: {first}", location=self.location)


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """A checked program, which can run any number of times.

    Attributes:
        digest: A hash, equal for programs that do the same.
        inputs: The inputs of the program.
        values: A description of each numbered value.
        steps: The steps, in order.
        outputs: The numbers of the values that it returns.
    """

    digest: bytes
    inputs: Sequence[GraphInput]
    values: Sequence[Value]
    steps: Sequence[Step]
    outputs: Sequence[int]
    # The bytes and the multiplications of a run, by the shapes of the bindings.
    footprints: dict[Hashable, tuple[int, int, int]] = field(default_factory=dict)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The numbers of the inputs that the program writes, in order."""
        return tuple(
            number
            for number, source in enumerate(self.inputs)
            if source.kind == GraphInput.KIND_WRITE
        )

    def check_bindings(self, bindings: Sequence[Binding]) -> None:
        """Check the values that are bound to the inputs.

        Raises:
            InvalidArgumentError: Their number, kinds or dtypes differ from those of the inputs, or
                a variable that is written is bound twice.
        """
        if len(bindings) != len(self.inputs):
            raise InvalidArgumentError(
                f"the update program has {len(self.inputs)} inputs, but {len(bindings)} were bound"
            )
        for number, (source, binding) in enumerate(zip(self.inputs, bindings, strict=True)):
            _check_binding(number, source, binding)
        for number in self.written:
            if sum(one is bindings[number] for one in bindings) > 1:
                raise InvalidArgumentError(
                    f"the variable that input {number} ({self.inputs[number].label}) writes is "
                    "bound to another input as well; bind each variable once"
                )


def _check_binding(number: int, source: GraphInput, binding: Binding) -> None:
    dtype = decode_dtype(source.dtype)
    if source.kind != GraphInput.KIND_NUMBER:
        fits = isinstance(binding, torch.Tensor) and binding.dtype == dtype
    else:
        fits = type(binding) is _NUMBER_TYPES[dtype]
    if not fits:
        given = getattr(binding, "dtype", type(binding).__name__)
        kind = GraphInput.Kind.Name(source.kind).removeprefix("KIND_").lower()
        raise InvalidArgumentError(
            f"input {number} ({source.label}) of the update program is a {kind} of "
            f"{dtype}, but {given} was bound to it"
        )


_NUMBER_TYPES = {torch.float64: float, torch.int64: int, torch.bool: bool}


def compile_graph(program: GraphProgram) -> CompiledGraph:
    """Check and decode a program; raise as `check_graph`, or ResourceExhaustedError."""
    values = check_graph(program)
    steps: list[Step] = []
    used: set[int] = {*range(len(program.inputs)), *program.outputs}
    end = len(values)
    for node in reversed(program.nodes):
        results = range(end - _num_results(node), end)
        end = results.start
        steps.append(_step(node, results, values, used))
        used.update(steps[-1].released)
    outputs = tuple(program.outputs)
    return CompiledGraph(digest(program), program.inputs, values, steps[::-1], outputs)


def _num_results(node: GraphNode) -> int:
    operation = OPERATIONS.get(node.operation)
    return operation.num_results if operation else 1


def _step(node: GraphNode, results: range, values: Sequence[Value], used: set[int]) -> Step:
    operation = OPERATIONS.get(node.operation)
    types = {one.name: one.type for one in operation.parameters} if operation else {}
    arguments = tuple(
        _decode(argument, type_)
        for argument, type_ in zip(node.arguments, types.values() or ["number"] * 2, strict=False)
    )
    keywords = {name: _decode(one, types[name]) for name, one in node.keywords.items()}
    touched = {*references((*arguments, *keywords.values())), *results}
    writes = operation is not None and operation.effect is Effect.WRITE
    return Step(
        name=node.operation,
        operation=operation,
        arguments=arguments,
        keywords=keywords,
        results=results,
        writes=values[results[0]].root if writes else None,
        released=tuple(touched - used),
        location=node.location,
    )


def _decode(argument: GraphArgument, type_: str) -> Any:
    match argument.WhichOneof("kind"):
        case None:
            return None
        case "value":
            return Reference(argument.value)
        case "list":
            return [_decode(item, type_) for item in argument.list.items]
        case "dtype":
            return decode_dtype(argument.dtype)
        case "text" if "MemoryFormat" in type_:
            return getattr(torch, argument.text)
        case kind:
            return getattr(argument, kind)


def references(arguments: Iterable[Any]) -> Iterator[int]:
    """Yield the numbers of the values that arguments refer to."""
    for argument in arguments:
        if isinstance(argument, Reference):
            yield argument.number
        elif isinstance(argument, list):
            yield from references(argument)


class GraphCache:
    """The most recently used programs, compiled.

    Attributes:
        compilations: The number of programs that were compiled.
    """

    def __init__(self, size: int = 256) -> None:
        self.compilations = 0
        self._graphs = LruCache[bytes, CompiledGraph](size)
        self._lock = threading.Lock()

    def compiled(self, program: GraphProgram) -> CompiledGraph:
        """Return a compiled program, from the cache if possible; raise as `compile_graph`."""
        check_size(program)
        key = digest(program)
        with self._lock:
            known = self._graphs.get(key)
        # The event loop takes the lock, too, and must not wait for a compilation.
        graph = known or compile_graph(program)
        with self._lock:
            self.compilations += known is None
            self._graphs.put(key, graph)
        return graph


_DIVIDING = frozenset({"div", "floor_divide", "fmod", "remainder"})


def check_division(
    operation: Operation, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Check an integer division for overflow."""
    if operation.name.split(".")[1].rstrip("_") not in _DIVIDING:
        return
    names = [parameter.name for parameter in operation.parameters]
    given = dict(zip(names, arguments, strict=False)) | dict(keywords)
    dividend, divisor = given["self"], given["other"]
    dtype = torch.result_type(dividend, divisor)
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return
    if not _has(divisor, -1) or not _has(dividend, smallest := torch.iinfo(dtype).min):
        return
    if _is_any(torch.eq(_tensor(dividend), smallest) & torch.eq(_tensor(divisor), -1)):
        raise OverflowError(f"{smallest}, the smallest {dtype}, is divided by -1")


def _has(numbers: Any, number: int) -> bool:
    if not isinstance(numbers, torch.Tensor):
        return bool(numbers == number)
    if numbers.dtype is torch.bool or torch.iinfo(numbers.dtype).min > number:
        return False
    return _is_any(torch.eq(numbers, number))


def _item(tensor: torch.Tensor) -> int | float:
    if tensor.numel() != 1 or tensor.is_complex():
        raise ValueError(f"no number is in {tensor.dtype} of shape {list(tensor.shape)}")
    if tensor.is_meta:
        # When a program is prepared, its tensors have no contents.
        return 1.0 if tensor.is_floating_point() else 1
    return tensor.item() if tensor.is_floating_point() else int(tensor)


def _is_any(found: torch.Tensor) -> bool:
    # When a program is prepared, its tensors have no contents.
    return not found.is_meta and bool(found.any())


def _tensor(numbers: Any) -> torch.Tensor:
    return torch.as_tensor(numbers)
