"""Turn an update function into a program that parameter servers run.

The function is called once, with stand-ins for its variables, tensors and numbers, and what it does
to them is recorded; a torch function that would go past the recording is refused. Nothing of their
values enters the program, so that a learning rate that changes does not make a new one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stratagem._core.variables import Variable
from stratagem._tracing.encoding import encode_graph
from stratagem._tracing.inputs import TracedInputs, TracedVariable
from stratagem._tracing.lifting import Lifter
from stratagem._tracing.numbers import is_traced
from stratagem._tracing.recording import RecordedValue, Recording, Source
from stratagem._tracing.returned import Returned
from stratagem._tracing.source import Location, definition_of, refused
from stratagem_proto.errors import InvalidArgumentError, UpdateFunctionError
from stratagem_proto.programs.graph_program import check_graph, digest
from stratagem_proto.v1.update_program_pb2 import GraphInput, GraphProgram

_Tensor = torch.Tensor
_CONTENTS = {
    _Tensor.numpy: ".numpy()",
    _Tensor.tolist: ".tolist()",
    _Tensor.item: ".item()",
    _Tensor.data_ptr: ".data_ptr()",
    _Tensor.untyped_storage: ".untyped_storage()",
    _Tensor.__array__: "a conversion to a numpy array",
    _Tensor.__bool__: "a branch (or bool())",
    _Tensor.__complex__: "complex()",
    _Tensor.__contains__: "the operator 'in'",
    _Tensor.__deepcopy__: "copy.deepcopy()",
    _Tensor.__dlpack__: "a conversion by DLPack",
    _Tensor.__float__: "float()",
    _Tensor.__index__: "an index (or range())",
    _Tensor.__int__: "int()",
    _Tensor.__reduce_ex__: "pickling",
}


class Gate(TorchFunctionMode):
    """While it is entered, what reveals or replaces a tensor's contents is refused.

    Args:
        replace: Gives the stand-in for an argument that should have one.
    """

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        super().__init__()
        self._replace = replace

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        _check_traceable(func)
        if getattr(func, "__self__", None) is torch.Tensor.grad:
            # Another tensor, which the stand-in does not have.
            return func(*args)
        keywords = {name: self._opened(one) for name, one in (kwargs or {}).items()}
        if func in (torch.tensor, torch.as_tensor) and args and is_traced(args[0]):
            return torch.full((), args[0], dtype=keywords.get("dtype"))
        return func(*map(self._opened, args), **keywords)

    def _opened(self, argument: Any) -> Any:
        if type(argument) in (tuple, list):
            return type(argument)(self._opened(item) for item in argument)
        return self._replace(argument)


def _check_traceable(func: Callable[..., Any]) -> None:
    name = getattr(func, "__name__", str(func))
    if func in _CONTENTS:
        raise refused(
            f"{_CONTENTS[func]} needs the contents of a tensor, which exist only on the server",
            "use tensor operations such as torch.where, or pass what is known before "
            "as an argument",
        )
    if name == "__set__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "attribute")
        raise refused(
            f"the {attribute!r} of a tensor is assigned, which servers do not see",
            "write a variable with assign(), or in place with copy_()",
        )


@dataclass(frozen=True)
class Trace:
    """What an update function does, whatever the values are.

    Attributes:
        program: The program.
        inputs: For each input of the program the number of the found source that is bound to it.
        returned: The function's result, to be filled with what came of a call.
        only_reads: Whether it writes nothing and returns something, so that no server has to run
            it; then nothing is known of its result.
    """

    program: GraphProgram
    inputs: tuple[int, ...]
    returned: Returned | None
    only_reads: bool = False

    @cached_property
    def digest(self) -> bytes:
        """The digest by which servers know the program."""
        return digest(self.program)


@dataclass(frozen=True)
class TracedUpdate:
    """One call of an update function.

    Attributes:
        trace: What it does.
        sources: What was found in its arguments and captured: variables, tensors and numbers.
    """

    trace: Trace
    sources: Sequence[Source]

    @property
    def program(self) -> GraphProgram:
        """The program to run."""
        return self.trace.program

    @property
    def bindings(self) -> list[Source]:
        """What to bind to the program's inputs, in order.

        For an input of KIND_TENSOR it is a variable where that is not hosted with the others; its
        value is to be sent.
        """
        return [self.sources[number] for number in self.trace.inputs]

    @property
    def written(self) -> list[Variable]:
        """The variables that the program writes, in the order of its inputs."""
        return [
            source
            for one, source in zip(self.program.inputs, self.bindings, strict=True)
            if one.kind == GraphInput.KIND_WRITE and isinstance(source, Variable)
        ]

    def result(self, outputs: Sequence[torch.Tensor] = ()) -> Any:
        """Return what the function returned.

        Args:
            outputs: What the program has given back.
        """
        returned = self.trace.returned
        return None if returned is None else returned.filled(self.sources, outputs)


def trace(
    fn: Callable[..., Any],
    variables: Sequence[Variable] = (),
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    is_hosted: Callable[[Variable], bool] = lambda variable: True,
) -> TracedUpdate:
    """Trace `fn(*variables, *args, **kwargs)`.

    Args:
        fn: The update function. It runs on stand-ins; it may write variables and return a nest of
            tensors, variables and values of Python that are no objects of their own; if it writes
            nothing, anything but None.
        variables: Its first arguments; if it writes, it has to write each.
        args: Further arguments; nests may hold variables, tensors and numbers.
        kwargs: Keyword arguments, likewise.
        is_hosted: Whether a variable lives on the server that will run the program. Others are read
            and sent as tensors, and cannot be written.

    Raises:
        UpdateFunctionError: The function does what a server could not repeat: it asks for the
            contents of a tensor, branches on one or on a number, uses an operation outside of the
            allow-list, assigns what it captures, does not write what it should, or returns what no
            server gives back. The message names file, line and cure.
    """
    inputs = TracedInputs(Recording(), is_hosted)
    call = _Call.lifted(inputs, fn, variables, args, kwargs or {})
    found = _TRACES.get(call.key) if call.lifter.predictable else None
    if found is None:
        found = _traced(call, inputs)
        if call.lifter.predictable and inputs.recording.reproducible:
            _TRACES.put(call.key, found)
    return TracedUpdate(found, inputs.sources)


@dataclass(frozen=True)
class _Call:
    """A call of an update function in which stand-ins replace what may change."""

    function: Callable[..., Any]
    variables: Sequence[TracedVariable]
    args: Sequence[Any]
    keywords: Mapping[str, Any]
    lifter: Lifter
    key: Hashable
    location: Location

    @classmethod
    def lifted(
        cls,
        inputs: TracedInputs,
        fn: Callable[..., Any],
        variables: Sequence[Variable],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> _Call:
        lifter = Lifter(inputs)
        return cls(
            lifter.lift(fn, "the function"),
            [lifter.lift(one, one.name) for one in variables],
            [lifter.lift(one, f"argument {i}") for i, one in enumerate(args, 1)],
            {name: lifter.lift(one, name) for name, one in kwargs.items()},
            lifter,
            (*inputs.signature, len(variables), *kwargs, torch.get_default_dtype()),
            definition_of(fn),
        )

    def run(self) -> Any:
        return self.function(*self.variables, *self.args, **self.keywords)


def _traced(call: _Call, inputs: TracedInputs) -> Trace:
    recording, before = inputs.recording, call.lifter.contents()
    with torch.no_grad(), recording, Gate(inputs.replacement):
        returned = call.run()
    call.lifter.require_unchanged(before, call.location)
    hosted = inputs.hosted_variables
    if returned is not None and recording.written.isdisjoint(hosted):
        return Trace(GraphProgram(), (), None, only_reads=True)
    result = Returned(returned, inputs, call.location)
    program, used = encode_graph(recording.calls, hosted, result.outputs)
    numbers = tuple(inputs.number_of(value) for value in used)
    _check(program, call, used)
    return Trace(program, numbers, result)


def _check(program: GraphProgram, call: _Call, used: Sequence[RecordedValue]) -> None:
    written = {
        value.source.name
        for one, value in zip(program.inputs, used, strict=True)
        if one.kind == GraphInput.KIND_WRITE and isinstance(value.source, Variable)
    }
    for variable in call.variables:
        if variable.name not in written:
            raise _writes_nothing(f"variable {variable.name!r}", call.location)
    if not written:
        raise _writes_nothing("a variable", call.location)
    try:
        check_graph(program)
    except InvalidArgumentError as error:
        raise UpdateFunctionError(error.message, location=error.location) from error


def _writes_nothing(what: str, location: Location) -> UpdateFunctionError:
    return refused(
        f"the update function never writes {what}",
        "use assign(), assign_add(), assign_sub() or an in-place tensor method such "
        "as add_(); `v = v + 1` only gives a new value to a local name",
        location,
    )


class _TraceCache:
    """The most recently used traces."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._traces: OrderedDict[Hashable, Trace] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Trace | None:
        with self._lock:
            if key in self._traces:
                self._traces.move_to_end(key)
            return self._traces.get(key)

    def put(self, key: Hashable, trace: Trace) -> None:
        with self._lock:
            self._traces[key] = trace
            if len(self._traces) > self._size:
                self._traces.popitem(last=False)


# Models have some hundred variables, each with its own.
_TRACES = _TraceCache(size=4096)
