"""The operations that a function carried out on stand-ins, in order, and as a graph program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stratagem._core.variables import Variable
from stratagem._tracing.numbers import example_of, is_traced, node_of
from stratagem._tracing.source import Location, here, refused
from stratagem_proto.errors import StratagemError
from stratagem_proto.programs.operations import (
    INT64,
    OPERATIONS,
    Effect,
    Operation,
    check_index_types,
)
from stratagem_proto.v1.update_program_pb2 import (
    GraphArgument,
    GraphArgumentList,
    GraphInput,
    GraphNode,
    GraphProgram,
)
from stratagem_proto.wire.tensors import encode_dtype


class HostedInput(Protocol):
    """Something that the server of the program has."""

    @property
    def dtype(self) -> torch.dtype: ...


Source = Variable | torch.Tensor | int | float


@dataclass(eq=False)
class RecordedValue:
    """Something that has a number in the program.

    Attributes:
        source: What the caller binds if it is an input, otherwise None.
        label: What messages call it.
        writable: Whether operations may write to its memory.
        shares: The value whose memory it shares, itself if it is new.
    """

    source: Source | HostedInput | None = None
    label: str = ""
    writable: bool = True
    shares: RecordedValue = field(init=False)

    def __post_init__(self) -> None:
        self.shares = self


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One recorded operation.

    Attributes:
        operation: Name on the allow-list.
        arguments: Positional arguments, with `RecordedValue`s for tensors and unknown numbers.
        keywords: Keyword arguments, likewise.
        results: The values that it defines.
        writes: The value whose memory it writes, if any.
        location: The line of the user's source.
    """

    operation: str
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    results: Sequence[RecordedValue]
    writes: RecordedValue | None
    location: Location

    def operands(self) -> Iterator[RecordedValue]:
        """Yield the values among the arguments."""
        for argument in (*self.arguments, *self.keywords.values()):
            items = argument if isinstance(argument, list | tuple) else (argument,)
            yield from (item for item in items if isinstance(item, RecordedValue))


class Recording(TorchDispatchMode):
    """While it is entered, operations on tensors are recorded instead of carried out.

    They run on tensors of the `meta` device, which have shape and dtype and no contents.

    Attributes:
        calls: What was recorded, in order.
        reproducible: Whether the same function, given and capturing values of the same types and
            shapes, is recorded the same again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self.calls: list[RecordedCall] = []
        self.reproducible = True
        self._is_paused = False
        # By identity. Keeping the tensors keeps their identities from being reused.
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor, RecordedValue]] = {}

    def new_input(
        self,
        value: RecordedValue,
        shape: torch.Size,
        dtype: torch.dtype,
        stride: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Make the tensor without contents that stands for an input."""
        with self._paused():
            if stride is None:
                stride = torch.empty(shape, device="meta").stride()
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        self._known[id(meta)] = (meta, meta, value)
        return meta

    def adopt(self, tensor: torch.Tensor, value: RecordedValue) -> None:
        """Take a real tensor for an input."""
        meta = self.new_input(value, tensor.shape, tensor.dtype, tensor.stride())
        self._known[id(tensor)] = (tensor, meta, value)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def value_of(self, tensor: torch.Tensor) -> RecordedValue:
        """Return the value behind a tensor; real ones become inputs on first use."""
        return self._lookup(tensor)[1]

    def without_contents(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor; before its first use, the tensor itself."""
        known = self._known.get(id(tensor))
        return tensor if known is None else known[1]

    def _lookup(self, tensor: torch.Tensor) -> tuple[torch.Tensor, RecordedValue]:
        if id(tensor) not in self._known:
            if tensor.is_meta:
                raise refused(
                    "the update function uses a tensor of the meta device, which has no contents",
                    "make it on the CPU",
                )
            if tensor.layout is not torch.strided:
                raise refused(
                    f"the update function uses a tensor of layout {tensor.layout}",
                    "pass stratagem.IndexedSlices.from_sparse(gradient), or a dense tensor",
                )
            self.reproducible = False
            label = f"the tensor of {here().short}"
            self.adopt(tensor, RecordedValue(tensor, label, writable=False))
        return self._known[id(tensor)][1:]

    @property
    def written(self) -> set[RecordedValue]:
        """The values whose memory was written."""
        return {call.writes.shares for call in self.calls if call.writes is not None}

    def fix(self, key: Any) -> None:
        """Note that a number became part of the program."""
        self.reproducible = False

    def reveal(self, keys: Sequence[Any], refusal: StratagemError) -> NoReturn:
        """Refuse code that has to know numbers."""
        raise refusal

    def arithmetic(self, operation: str, operands: tuple[Any, ...]) -> RecordedValue:
        """Record an operation on numbers and return its result."""
        result = RecordedValue()
        arguments = [node_of(one).key if is_traced(one) else one for one in operands]
        self.calls.append(RecordedCall(operation, arguments, {}, [result], None, here()))
        return result

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = str(func)
        if self._is_paused or name in _ABOUT_DTYPES:
            return func(*args, **(kwargs or {}))
        if name in _IDENTITIES:
            return self._same(args[0])
        if name not in OPERATIONS:
            raise refused(*_REFUSALS.get(name, _not_allowed(name)))
        return self._call(OPERATIONS[name], args, kwargs or {})

    def _same(self, tensor: torch.Tensor) -> torch.Tensor:
        meta, value = self._lookup(tensor)
        same = meta.view(meta.shape)
        self._know(same, [value])
        return same

    def _call(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        schema = [argument.name for argument in operation.schema.arguments]
        positional = dict(zip(schema, args, strict=False))
        arguments = self._recorded(operation, positional)
        keywords = self._recorded(operation, kwargs)
        outcome = self._carried_out(operation, args, kwargs)
        target = self.value_of(args[0]) if operation.effect is not Effect.NEW else None
        results = [RecordedValue() for _ in range(operation.num_results)]
        if target is not None:
            results[0].shares = target.shares
        written = target if operation.effect is Effect.WRITE else None
        self._require_writable(written)
        call = RecordedCall(
            operation.name, list(arguments.values()), keywords, results, written, here()
        )
        self.calls.append(call)
        if written is not None:
            return args[0]
        self._know(outcome, results)
        return outcome

    def _recorded(self, operation: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
        takes_number = {one.name: one.takes_number for one in operation.parameters}
        return {
            name: self._argument(argument, takes_number[name])
            for name, argument in given.items()
            if name in takes_number
        }

    def _argument(self, argument: Any, takes_number: bool) -> Any:
        if isinstance(argument, torch.Tensor):
            return self.value_of(argument)
        if isinstance(argument, list | tuple):
            return [self._argument(item, takes_number) for item in argument]
        if not is_traced(argument):
            return argument
        node = node_of(argument)
        if takes_number:
            return node.key
        return node.guard_int("", 0) if node.is_int() else node.guard_float("", 0)

    def _carried_out(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        keywords = {key: self._concrete(one) for key, one in kwargs.items()}
        if operation.takes_device:
            keywords["device"] = "meta"
        concrete = [self._concrete(one) for one in args]
        try:
            check_index_types(operation, concrete)
            return operation.overload(*concrete, **keywords)
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            raise refused(
                f"{operation.name} fails: {str(error).splitlines()[0]}",
                "check the shapes and dtypes of what it is given",
            ) from error

    def _concrete(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return self._lookup(argument)[0]
        if isinstance(argument, list | tuple):
            return [self._concrete(item) for item in argument]
        return example_of(argument)

    def _require_writable(self, target: RecordedValue | None) -> None:
        if target is not None and not target.shares.writable:
            raise refused(
                f"{target.shares.label} is written in place, but it is no variable of "
                "this server, so that the write would be lost",
                "use the operation without trailing underscore, or clone() it first",
            )

    def _know(self, outcome: Any, results: Sequence[RecordedValue]) -> None:
        tensors = outcome if isinstance(outcome, list | tuple) else [outcome]
        for tensor, value in zip(tensors, results, strict=True):
            self._known[id(tensor)] = (tensor, tensor, value)


# Operations that matter to autograd only.
_IDENTITIES = frozenset({"aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"})

# Questions that are answered at once.
_ABOUT_DTYPES = frozenset({"aten.can_cast.default", "aten.promote_types.default"})

_REFUSALS = {
    "aten._local_scalar_dense.default": (
        "the contents of a tensor are needed, which exist only on the server",
        "use tensor operations such as torch.where, or pass the number as an argument",
    ),
    "aten.split.Tensor": ("a tensor is split", "take slices instead"),
    "aten.unbind.int": ("a tensor is iterated over", "use operations on all of it"),
}


def _not_allowed(name: str) -> tuple[str, str]:
    if name.startswith("aten._foreach_"):
        return (
            f"the operation {name} takes many tensors at a time",
            "use one operation for each; an optimizer may have a setting for it: foreach=False",
        )
    return (
        f"the operation {name} is not on the allow-list of parameter servers",
        "use pure or in-place tensor operations whose result has a known size and "
        "does not depend on chance",
    )


def encode_graph(
    calls: Sequence[RecordedCall],
    wanted: Iterable[RecordedValue],
    outputs: Sequence[RecordedValue] = (),
) -> tuple[GraphProgram, list[RecordedValue]]:
    """Return the program that carries out the writes to some values.

    Args:
        calls: All that was recorded, in order.
        wanted: Inputs whose contents after the program matter.
        outputs: Results that it gives back, as they are after it.

    Returns:
        The program, and the values that are its inputs, in order.
    """
    live = _live(calls, wanted, outputs)
    # In the order of their first use.
    operands = dict.fromkeys(operand for call in live for operand in call.operands())
    inputs = [value for value in operands if value.source is not None]
    numbers = {value: number for number, value in enumerate(inputs)}
    for call in live:
        for result in call.results:
            numbers[result] = len(numbers)
    written = {call.writes.shares for call in live if call.writes is not None}
    program = GraphProgram(
        inputs=[_encode_input(value, value in written) for value in inputs],
        nodes=[_encode_call(call, numbers) for call in live],
        outputs=[numbers[value] for value in outputs],
    )
    return program, inputs


def _live(
    calls: Sequence[RecordedCall], wanted: Iterable[RecordedValue], outputs: Iterable[RecordedValue]
) -> list[RecordedCall]:
    """Return the calls on which the wanted contents and the outputs depend, in order.

    Walks backwards: a write counts if its memory is read later or wanted, any other call if one of
    its results is used.
    """
    used = set(outputs)
    read = {value.shares for value in (*wanted, *used)}
    live = []
    for call in reversed(calls):
        if call.writes is not None:
            counts = call.writes.shares in read
        else:
            counts = not used.isdisjoint(call.results)
        if counts:
            live.append(call)
            used.update(call.operands())
            read.update(operand.shares for operand in call.operands())
    return live[::-1]


def _encode_input(value: RecordedValue, written: bool) -> GraphInput:
    source = value.source
    if isinstance(source, int | float):
        kind = GraphInput.KIND_NUMBER
        dtype = torch.float64 if isinstance(source, float) else torch.int64
    else:
        kind = GraphInput.KIND_TENSOR
        if value.writable:
            kind = GraphInput.KIND_WRITE if written else GraphInput.KIND_READ
        dtype = cast("HostedInput", source).dtype
    return GraphInput(kind=kind, dtype=encode_dtype(dtype), label=value.label)


def _encode_call(call: RecordedCall, numbers: dict[RecordedValue, int]) -> GraphNode:
    def encode(argument: Any) -> GraphArgument:
        if isinstance(argument, RecordedValue):
            return GraphArgument(value=numbers[argument])
        if isinstance(argument, list | tuple):
            items = GraphArgumentList(items=map(encode, argument))
            return GraphArgument(list=items)
        return _encode_literal(call, argument)

    return GraphNode(
        operation=call.operation,
        arguments=map(encode, call.arguments),
        keywords={name: encode(one) for name, one in call.keywords.items()},
        location=call.location.short,
    )


def _encode_literal(call: RecordedCall, argument: Any) -> GraphArgument:
    match argument:
        case None:
            return GraphArgument()
        case bool():
            return GraphArgument(flag=argument)
        case int() if argument in INT64:
            return GraphArgument(integer=argument)
        case float():
            return GraphArgument(number=argument)
        case str():
            return GraphArgument(text=argument)
        case torch.dtype():
            return GraphArgument(dtype=encode_dtype(argument))
        case torch.memory_format():
            return GraphArgument(text=str(argument).removeprefix("torch."))
    raise refused(
        f"{call.operation} is given {argument!r}, which a graph program cannot hold",
        "use real numbers of at most 64 bits",
        call.location,
    )
