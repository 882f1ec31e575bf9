"""A test whether a graph program computes each element of a variable from that element alone.

Such a program may run on parts of a variable, each with the same part of the gradient and of the
state, and comes to the same as on the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto

from stratagem_proto.programs.operations import ELEMENTWISE, ITEM, SCALAR_ARITY
from stratagem_proto.v1.update_program_pb2 import GraphArgument, GraphNode, GraphProgram

# They copy a tensor or make one of the same shape.
_LIKE = frozenset(
    f"aten.{name}.default"
    for name in ("_to_copy", "clone", "copy", "full_like", "ones_like", "zeros_like")
)
# Their first argument is the shape, which is that of one element.
_SIZED = frozenset(f"aten.{name}.default" for name in ("full", "ones", "zeros"))


class Extent(Enum):
    """How much of a variable a value has."""

    NUMBER = auto()
    SCALAR = auto()
    """A tensor of one element, which is the same for all parts of the variable."""
    ELEMENTS = auto()
    """A tensor with an element for each one of the variable."""


def first_mixing_node(program: GraphProgram, inputs: Sequence[Extent]) -> GraphNode | None:
    """Return the first node that may look at several elements at once; None if there is none.

    Args:
        program: A checked program.
        inputs: The extent of each input.
    """
    extents = list(inputs)
    for node in program.nodes:
        extent = _extent_of(node, extents)
        if extent is None:
            return node
        extents.append(extent)
    return None


def _extent_of(node: GraphNode, extents: Sequence[Extent]) -> Extent | None:
    operands = [extents[number] for number in _operands(_arguments(node))]
    if node.operation in SCALAR_ARITY:
        return Extent.NUMBER
    if node.operation == ITEM:
        return Extent.NUMBER if operands == [Extent.SCALAR] else None
    if node.operation in _SIZED:
        return None if node.arguments[0].list.items else Extent.SCALAR
    if node.operation == "aten.scalar_tensor.default":
        return Extent.SCALAR
    if node.operation not in ELEMENTWISE and node.operation not in _LIKE:
        return None
    return Extent.ELEMENTS if Extent.ELEMENTS in operands else Extent.SCALAR


def _arguments(node: GraphNode) -> Iterator[GraphArgument]:
    yield from node.arguments
    yield from node.keywords.values()


def _operands(arguments: Iterable[GraphArgument]) -> Iterator[int]:
    for argument in arguments:
        kind = argument.WhichOneof("kind")
        if kind == "value":
            yield argument.value
        elif kind == "list":
            yield from _operands(argument.list.items)
