"""The checks of a graph program that client and server share, its digest, and its outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.programs.operations import (
    ITEM,
    MEMORY_FORMATS,
    OPERATIONS,
    SCALAR_ARITY,
    TEXTS,
    Effect,
    Operation,
    OperationParameter,
)
from stratagem_proto.v1 import tensor_pb2
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.update_program_pb2 import (
    GraphArgument,
    GraphInput,
    GraphNode,
    GraphOutput,
    GraphProgram,
)
from stratagem_proto.wire.frames import copy_bytes
from stratagem_proto.wire.tensors import allocate, as_bytes, decode_dtype, spec_of, spec_of_kind

MAX_NODES = 10_000
MAX_INPUTS = 10_000
MAX_LIST_ITEMS = 1_000
MAX_OUTPUTS = 1_000

# They are kept with the answer, in case the request comes again.
MAX_OUTPUT_BYTES = 256 << 10

_NUMBER_DTYPES = {
    tensor_pb2.DATA_TYPE_FLOAT64,
    tensor_pb2.DATA_TYPE_INT64,
    tensor_pb2.DATA_TYPE_BOOL,
}

# Fields of GraphArgument that may be given for a type of the ATen schema, besides references to
# values. "" is None.
_LITERALS = {
    "Tensor": {""},
    "number": {"flag", "integer", "number"},
    "float": {"integer", "number"},
    "int": {"integer"},
    "bool": {"flag"},
    "str": {"text"},
    "ScalarType": {"dtype"},
    "MemoryFormat": {"text"},
}

_TEXTS_OF = {"str": TEXTS, "MemoryFormat": MEMORY_FORMATS}


@dataclass(frozen=True)
class Value:
    """What is known about a numbered value before the program runs.

    Attributes:
        root: Number of the value whose memory it shares; its own if it is new.
        is_tensor: False for a number.
    """

    root: int
    is_tensor: bool


def digest(program: GraphProgram) -> bytes:
    """Return the SHA-256 of a program without what is only used in messages."""
    bare = GraphProgram()
    bare.CopyFrom(program)
    for source in bare.inputs:
        source.ClearField("label")
    for node in bare.nodes:
        node.ClearField("location")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).digest()


def check_graph(program: GraphProgram) -> list[Value]:
    """Check a program before anything of it runs.

    Returns:
        What is known about each numbered value.

    Raises:
        ResourceExhaustedError: It has more nodes, inputs or outputs than allowed.
        InvalidArgumentError: An operation outside of the allow-list, a reference to a value that
            comes later, arguments that do not fit the ATen schema, a write to what is not to be
            written, or a variable that should be written and is not. The message names the place in
            the client's source.
    """
    check_size(program)
    values = [_input_value(number, one) for number, one in enumerate(program.inputs)]
    written = set()
    for node in program.nodes:
        try:
            _check_node(node, values)
            written |= set(_written_roots(node, values, program.inputs))
        except InvalidArgumentError as error:
            raise _located(node, error.message) from None
        values += _results(node, values)
    _check_written(program.inputs, written)
    for number in program.outputs:
        if number >= len(values):
            raise InvalidArgumentError(
                f"the update program gives back value {number} of {len(values)}"
            )
    return values


def check_output_size(nbytes: int) -> None:
    """Check how large all that a program gives back is, before it runs.

    Raises:
        InvalidArgumentError: It is too much to be kept with the answer.
    """
    if nbytes > MAX_OUTPUT_BYTES:
        raise InvalidArgumentError(
            f"the update function returns tensors of {nbytes} bytes; at most "
            f"{MAX_OUTPUT_BYTES} are kept for an answer. Assign them to a variable and "
            "read that after the update, or return nothing"
        )


def check_size(program: GraphProgram) -> None:
    """Check how long a program is, before anything else is done with it.

    Raises:
        ResourceExhaustedError: It has more nodes, inputs or outputs than allowed.
    """
    _check_count("nodes", len(program.nodes), MAX_NODES)
    _check_count("inputs", len(program.inputs), MAX_INPUTS)
    _check_count("outputs", len(program.outputs), MAX_OUTPUTS)


def _check_count(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise ResourceExhaustedError(
            f"the update program has {size} {what}; at most {limit} are allowed. "
            "Replace Python loops by operations on whole tensors"
        )


def _input_value(number: int, source: GraphInput) -> Value:
    decode_dtype(source.dtype)
    if source.kind == GraphInput.KIND_NUMBER and source.dtype not in _NUMBER_DTYPES:
        raise InvalidArgumentError(
            f"input {number} ({source.label}) is a number, so its data type must be "
            "FLOAT64, INT64 or BOOL"
        )
    if not GraphInput.KIND_READ <= source.kind <= GraphInput.KIND_NUMBER:
        raise InvalidArgumentError(
            f"input {number} ({source.label}) has no known kind, but {source.kind}"
        )
    return Value(number, source.kind != GraphInput.KIND_NUMBER)


def _located(node: GraphNode, message: str) -> InvalidArgumentError:
    where = f"{node.location}: " if node.location else ""
    return InvalidArgumentError(f"{where}{node.operation}: {message}", location=node.location)


def _check_node(node: GraphNode, values: Sequence[Value]) -> None:
    operation = OPERATIONS.get(node.operation)
    if operation is not None:
        _check_call(node, operation, values)
    elif node.operation in SCALAR_ARITY:
        _check_arithmetic(node, values)
    elif node.operation == ITEM:
        _check_item_of(node, values)
    else:
        raise InvalidArgumentError(
            "parameter servers do not run this operation; it is not one of the pure "
            "and in-place operations on their allow-list"
        )


def _check_arithmetic(node: GraphNode, values: Sequence[Value]) -> None:
    arity = SCALAR_ARITY[node.operation]
    if len(node.arguments) != arity or node.keywords:
        raise InvalidArgumentError(f"takes {arity} numbers and nothing else")
    operand = OperationParameter("operand", "number", True, True, True)
    for argument in node.arguments:
        _check_argument(operand, argument, values)


def _check_item_of(node: GraphNode, values: Sequence[Value]) -> None:
    if len(node.arguments) != 1 or node.keywords:
        raise InvalidArgumentError("takes a tensor and nothing else")
    tensor = OperationParameter("tensor", "Tensor", True, True, False)
    _check_argument(tensor, node.arguments[0], values)
    if node.arguments[0].WhichOneof("kind") != "value":
        raise InvalidArgumentError("takes a tensor and nothing else")


def _check_call(node: GraphNode, operation: Operation, values: Sequence[Value]) -> None:
    given = dict(_given(node, operation))
    for parameter in operation.parameters:
        if parameter.name in given:
            _check_argument(parameter, given.pop(parameter.name), values)
        elif parameter.required:
            raise InvalidArgumentError(f"argument {parameter.name!r} is missing")
    if given:
        raise InvalidArgumentError(f"takes no argument {min(given)!r}")


def _given(node: GraphNode, operation: Operation) -> Iterator[tuple[str, GraphArgument]]:
    positional = [one for one in operation.parameters if one.positional]
    if len(node.arguments) > len(positional):
        raise InvalidArgumentError(
            f"takes {len(positional)} positional arguments, not {len(node.arguments)}"
        )
    for parameter, argument in zip(positional, node.arguments, strict=False):
        if parameter.name in node.keywords:
            raise InvalidArgumentError(f"argument {parameter.name!r} is given twice")
        yield parameter.name, argument
    yield from node.keywords.items()


def _check_argument(
    parameter: OperationParameter, argument: GraphArgument, values: Sequence[Value]
) -> None:
    type_, optional = _unwrapped(parameter.type, "Optional")
    if optional and argument.WhichOneof("kind") is None:
        return
    item, is_list = _unwrapped(type_, "List")
    if not is_list:
        return _check_item(parameter, type_, argument, values)
    if argument.WhichOneof("kind") != "list":
        raise InvalidArgumentError(f"argument {parameter.name!r} must be a list")
    _check_count(f"items in {parameter.name!r}", len(argument.list.items), MAX_LIST_ITEMS)
    item, optional = _unwrapped(item, "Optional")
    for one in argument.list.items:
        if not (optional and one.WhichOneof("kind") is None):
            _check_item(parameter, item, one, values)


def _unwrapped(type_: str, wrapper: str) -> tuple[str, bool]:
    if type_.startswith(f"{wrapper}["):
        return type_[len(wrapper) + 1 : -1], True
    return type_, False


def _check_item(
    parameter: OperationParameter, type_: str, argument: GraphArgument, values: Sequence[Value]
) -> None:
    field = argument.WhichOneof("kind") or ""
    if field == "value":
        fits = _reference_fits(parameter, type_, argument.value, values)
    elif field == "text" and argument.text not in _TEXTS_OF.get(type_, ()):
        fits = False
    elif type_ == "Tensor":
        fits = parameter.takes_number and field in _LITERALS["number"]
    else:
        fits = field in _LITERALS[type_]
    if field == "dtype":
        decode_dtype(argument.dtype)
    if not fits:
        raise InvalidArgumentError(
            f"argument {parameter.name!r} must be of type {parameter.type}, not "
            f"{str(argument).strip()[:80] or 'None'}"
        )


def _reference_fits(
    parameter: OperationParameter, type_: str, number: int, values: Sequence[Value]
) -> bool:
    if number >= len(values):
        raise InvalidArgumentError(
            f"argument {parameter.name!r} refers to value {number}, which does not "
            "exist before this operation"
        )
    return type_ == "Tensor" if values[number].is_tensor else parameter.takes_number


def _results(node: GraphNode, values: Sequence[Value]) -> Iterable[Value]:
    number = len(values)
    operation = OPERATIONS.get(node.operation)
    if operation is None:
        return [Value(number, is_tensor=False)]
    if operation.effect is Effect.NEW:
        return [Value(number + i, True) for i in range(operation.num_results)]
    return [Value(values[_first(node, operation).value].root, is_tensor=True)]


def _first(node: GraphNode, operation: Operation) -> GraphArgument:
    if node.arguments:
        return node.arguments[0]
    return node.keywords[operation.parameters[0].name]


def _written_roots(
    node: GraphNode, values: Sequence[Value], inputs: Sequence[GraphInput]
) -> Iterator[int]:
    operation = OPERATIONS.get(node.operation)
    if operation is None or operation.effect is not Effect.WRITE:
        return
    root = values[_first(node, operation).value].root
    if root < len(inputs) and inputs[root].kind != GraphInput.KIND_WRITE:
        raise InvalidArgumentError(
            f"writes input {root} ({inputs[root].label}), which is not a variable to "
            "be written; use the operation that returns a new tensor"
        )
    yield root


def _check_written(inputs: Sequence[GraphInput], written: set[int]) -> None:
    expected = {
        number for number, source in enumerate(inputs) if source.kind == GraphInput.KIND_WRITE
    }
    if not expected:
        raise InvalidArgumentError("the update program writes no variable")
    for number in sorted(expected - written):
        raise InvalidArgumentError(
            f"the update program never writes input {number} "
            f"({inputs[number].label}), which it was given to write"
        )


_DTYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}


def spec_of_output(value: torch.Tensor | float) -> TensorSpec:
    """Return the description of a tensor, or of a number as a scalar.

    Raises:
        InvalidTypeError: Tensors of its dtype cannot be sent.
    """
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    return spec_of_kind(_DTYPES[type(value)], torch.Size())


def encode_output(value: torch.Tensor | float) -> GraphOutput:
    """Return the message of a value that a program has computed; the value is copied."""
    spec = spec_of_output(value)
    if not isinstance(value, torch.Tensor):
        value = torch.tensor(value, dtype=_DTYPES[type(value)])
    return GraphOutput(spec=spec, data=bytes(as_bytes(value)))


def decode_output(output: GraphOutput) -> torch.Tensor:
    """Return the tensor of a message; a scalar for a number."""
    tensor = allocate(output.spec)
    copy_bytes(as_bytes(tensor), memoryview(output.data))
    return tensor
