"""Which traced rules of optimizers may step a part of a variable by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.operations import ELEMENTWISE, ITEM, SCALAR_ARITY
from stratagem_proto.v1.update_program_pb2 import (
    GraphArgument,
    GraphNode,
    GraphProgram,
    TracedInput,
    TracedRule,
    TracedState,
)

# Such a program may run on parts of a variable, each with the same part of the gradient and of the
# state, and comes to the same as on the whole.

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


def mixing_node(rule: TracedRule) -> GraphNode | None:
    """Return an operation by which elements of a variable depend on other elements of it.

    None if there is no such operation, so that the rule may step parts of a variable.
    """
    kinds = {state.key: _extent_of_state(state) for state in rule.state}
    for step in (rule.first, rule.later):
        inputs = [_extent_of_input(one, kinds) for one in step.inputs]
        node = first_mixing_node(step.graph, inputs)
        if node is not None:
            return node
    return None


def require_whole(rule: TracedRule, variable: str, optimizer: str) -> None:
    """Refuse a rule that cannot step a variable of which there are parts.

    Raises:
        InvalidArgumentError: Elements depend on each other.
    """
    node = mixing_node(rule)
    if node is not None:
        where = f" ({node.location})" if node.location else ""
        raise InvalidArgumentError(
            f"{optimizer} cannot step {variable!r}, which is in several parts: {node.operation}"
            f"{where} needs the whole. Leave the variable_partitioner out, or make the module "
            "under one that keeps this variable whole",
            variable=variable,
            location=node.location,
        )


def _extent_of_state(state: TracedState) -> Extent:
    if state.is_number:
        return Extent.NUMBER
    return Extent.SCALAR if state.is_scalar else Extent.ELEMENTS


def _extent_of_input(one: TracedInput, states: Mapping[str, Extent]) -> Extent:
    match one.WhichOneof("kind"):
        case "state":
            return states[one.state]
        case "hyperparameter":
            return Extent.NUMBER
    return Extent.ELEMENTS
