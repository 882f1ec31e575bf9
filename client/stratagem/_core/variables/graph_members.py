"""What variables of TensorFlow's graphs can do, and those of no graph refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from stratagem_proto.errors import UnimplementedError


def of_graphs(member: str, remedy: str) -> Callable[..., NoReturn]:
    """Return a method that refuses what only variables of graphs can do."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise graph_refusal(member, remedy)

    return refuse


def graph_refusal(member: str, remedy: str) -> UnimplementedError:
    """Return the error of a member that belongs to graphs."""
    return UnimplementedError(
        f"Variable.{member} belongs to graphs and their sessions, which there are none of here; "
        f"use {remedy}"
    )


class GraphMembers:
    """The members of a variable that belong to graphs. Spec: VAR-25."""

    initializer: None = None
    eval = of_graphs("eval", "read_value() or numpy()")
    initialized_value = of_graphs("initialized_value", "read_value()")
    count_up_to = of_graphs("count_up_to", "a dataset of numbers, or assign_add(1)")
    to_proto = of_graphs("to_proto", "strategy.save()")
    from_proto = of_graphs("from_proto", "strategy.restore()")
    initial_value = property(of_graphs("initial_value", "read_value()"))
