"""What servers and clients find out about the traced rules of optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.elementwise import Extent, first_mixing_node
from stratagem_proto.v1.update_program_pb2 import GraphNode, TracedInput, TracedRule, TracedState


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
