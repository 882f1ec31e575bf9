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
from enum import Enum
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from stratagem._core.assignment import Write
from stratagem._core.nests import map_leaves
from stratagem._core.variable_creation import VariableTraits
from stratagem._core.variables import LocalVariable, Variable
from stratagem._tracing.lifting import Lifter
from stratagem._tracing.numbers import NumberNode, is_traced, node_of, traced
from stratagem._tracing.recording import RecordedValue, Recording, Source, encode_graph
from stratagem._tracing.source import Location, definition_of, refused
from stratagem_proto.errors import InvalidArgumentError, StratagemError, UpdateFunctionError
from stratagem_proto.programs.graph_program import check_graph, check_output_size, digest
from stratagem_proto.v1.update_program_pb2 import GraphInput, GraphProgram


class TracedVariable(LocalVariable):
    """Records what is done to a variable.

    Args:
        variable: The variable that it stands for.
        tensor: Tensor without contents, for which the recording records.
    """

    def __init__(self, variable: Variable, tensor: torch.Tensor) -> None:
        traits = VariableTraits(
            variable.name, variable.trainable, variable.synchronization, variable.aggregation
        )
        vars(self).update(
            _traits=traits,
            _leaf=tensor,
            _device_name=variable.device_name,
            _strategy=variable.distribute_strategy,
        )

    def _write(self, write: Write, value: Any) -> None:
        try:
            super()._write(write, value)
        except UpdateFunctionError:
            raise
        except StratagemError as error:
            raise refused(
                f"{write.value} fails: {error.message}", "convert the value before"
            ) from error

    def _checked_indices(self, indices: torch.Tensor) -> torch.Tensor:
        # They are not known here; the server checks them.
        return indices

    def __setattr__(self, name: str, value: object) -> None:
        raise refused(
            f"{name!r} of variable {self.name!r} is assigned, which servers do not see",
            "write the variable with assign(), or in place with copy_()",
        )


class TracedInputs:
    """Makes the stand-ins for inputs, one for each that is distinct.

    Args:
        recording: Where the stand-ins record.
        is_hosted: Whether a variable lives on the server that runs the program.

    Attributes:
        recording: As given.
        values: The inputs in the order in which they were found.
        signature: Describes them by all but their values.
    """

    def __init__(self, recording: Recording, is_hosted: Callable[[Variable], bool]) -> None:
        self.values: list[RecordedValue] = []
        self.signature: list[Hashable] = []
        self.recording = recording
        self._is_hosted = is_hosted
        # Hosted variables by name, for several objects may stand for one; all else by identity.
        self._variables: dict[str | int, tuple[int, TracedVariable]] = {}
        self._tensors: dict[int, int] = {}

    def number(self, number: int | float, label: str) -> Any:
        """Return the stand-in for a number."""
        value = RecordedValue(number, label, writable=False)
        self._add(value, ("number", type(number).__name__))
        return traced(NumberNode(self.recording, value, number, label))

    def variable(self, variable: Variable, label: str) -> TracedVariable:
        """Return the stand-in for a variable."""
        if isinstance(variable, TracedVariable):
            return variable
        hosted = self._is_hosted(variable)
        key = variable.name if hosted else id(variable)
        if key not in self._variables:
            self._variables[key] = self._new_variable(variable, label, hosted)
        order, stand_in = self._variables[key]
        self.signature.append(("input", order))
        return stand_in

    def _new_variable(
        self, variable: Variable, label: str, hosted: bool
    ) -> tuple[int, TracedVariable]:
        order = len(self.values)
        value = RecordedValue(variable, label, writable=hosted)
        # A function may ask for these, for instance leave biases out by name.
        traits = (variable.name, variable.trainable, variable.device_name)
        self._add(value, (variable.dtype, variable.shape, hosted, *traits))
        tensor = self.recording.new_input(value, variable.shape, variable.dtype)
        return order, TracedVariable(variable, tensor)

    def tensor(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Take note of a tensor; what is done to itself will be recorded."""
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = len(self.values)
            value = RecordedValue(tensor, label, writable=False)
            self._add(value, (tensor.dtype, tensor.shape, tensor.layout))
            if tensor.layout is torch.strided and not tensor.is_meta:
                self.recording.adopt(tensor, value)
                self.signature.append(tensor.stride())
        self.signature.append(("input", self._tensors[id(tensor)]))
        return tensor

    def _add(self, value: RecordedValue, description: Hashable) -> None:
        self.values.append(value)
        self.signature.append(description)

    def replacement(self, argument: Any) -> Any:
        """Return what takes the place of an argument of a torch function."""
        if isinstance(argument, Variable):
            self.recording.reproducible &= isinstance(argument, TracedVariable)
            return self.variable(argument, argument.name)
        if isinstance(argument, torch.Tensor):
            return self.recording.without_contents(argument)
        return argument

    @property
    def sources(self) -> list[Source]:
        """What the caller binds, in the order of the values."""
        found = (value.source for value in self.values if value.source is not None)
        return [cast("Source", source) for source in found]

    def number_of(self, value: RecordedValue) -> int:
        """Return the place of a value; add it if only the recording has it."""
        if value not in self.values:
            self.values.append(value)
        return self.values.index(value)


# These are the same whenever the function returns them, and nobody changes them.
_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    Enum,
    np.generic,
    torch.device,
    torch.dtype,
    torch.memory_format,
)


@dataclass(frozen=True)
class _Source:
    """Something that the call was given, by its number among the sources."""

    number: int


@dataclass(frozen=True)
class _Output:
    """An output of the program, by its number; a number of Python if it was one."""

    number: int
    is_number: bool


class Returned:
    """A function's result, in which places stand for what differs between calls.

    Args:
        result: A nest of what the function returned for stand-ins.
        inputs: The stand-ins.
        location: Where the function is defined.

    Attributes:
        outputs: The values that the program has to give back, in order.

    Raises:
        UpdateFunctionError: It holds something that no server gives back, or more than is kept with
            an answer.
    """

    def __init__(self, result: Any, inputs: TracedInputs, location: Location) -> None:
        self.outputs: list[RecordedValue] = []
        self._inputs, self._location = inputs, location
        self._nbytes = 0
        self._places = map_leaves(self._place, result)
        try:
            check_output_size(self._nbytes)
        except InvalidArgumentError as error:
            what, _, cure = error.message.partition(". ")
            raise refused(what, cure, location) from None

    def filled(self, sources: Sequence[Source], outputs: Sequence[torch.Tensor]) -> Any:
        """Return the result of one call: a new nest of what came of it."""

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, _Source):
                return sources[leaf.number]
            if not isinstance(leaf, _Output):
                return leaf
            output = outputs[leaf.number]
            return output.item() if leaf.is_number else output

        return map_leaves(fill, self._places)

    def _place(self, leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            stand_in = self._inputs.replacement(leaf)
            leaf = stand_in.value() if isinstance(stand_in, TracedVariable) else leaf
        if isinstance(leaf, torch.Tensor):
            return self._place_of(self._inputs.recording.value_of(leaf), leaf)
        if is_traced(leaf):
            return self._place_of(node_of(leaf).key, None)
        if not isinstance(leaf, _CONSTANTS):
            raise refused(
                f"the update function returns a {type(leaf).__name__}, which does not "
                "come back from a server",
                "return tensors, variables, numbers, text, or a nest of them",
                self._location,
            )
        return leaf

    def _place_of(self, value: RecordedValue, tensor: torch.Tensor | None) -> Any:
        if value.source is not None:
            return _Source(self._inputs.number_of(value))
        if value not in self.outputs:
            self.outputs.append(value)
            self._nbytes += 0 if tensor is None else tensor.numel() * tensor.itemsize
        return _Output(self.outputs.index(value), is_number=tensor is None)


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
    hosted = [value for value in inputs.values if value.writable]
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
