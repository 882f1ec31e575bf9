"""Recorded operations to a graph program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch

from stratagem._tracing.recording import HostedInput, RecordedCall, RecordedValue
from stratagem._tracing.source import refused
from stratagem_proto.programs.operations import INT64
from stratagem_proto.v1.update_program_pb2 import (
    GraphArgument,
    GraphArgumentList,
    GraphInput,
    GraphNode,
    GraphProgram,
)
from stratagem_proto.wire.tensors import encode_dtype


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
    inputs = list(_inputs(live))
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


def _inputs(calls: Sequence[RecordedCall]) -> Iterator[RecordedValue]:
    """Return the inputs in the order of their first use."""
    operands = (operand for call in calls for operand in call.operands())
    return (value for value in dict.fromkeys(operands) if value.source is not None)


def _encode_input(value: RecordedValue, written: bool) -> GraphInput:
    source = value.source
    if isinstance(source, int | float):
        kind = GraphInput.KIND_NUMBER
        dtype = torch.float64 if isinstance(source, float) else torch.int64
    else:
        kind = _kind_of(value, written)
        dtype = cast("HostedInput", source).dtype
    return GraphInput(kind=kind, dtype=encode_dtype(dtype), label=value.label)


def _kind_of(value: RecordedValue, written: bool) -> GraphInput.Kind:
    if value.writable:
        return GraphInput.KIND_WRITE if written else GraphInput.KIND_READ
    return GraphInput.KIND_TENSOR


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
