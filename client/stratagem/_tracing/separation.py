"""A check that an optimizer steps each parameter as if it had no other one.

So servers do. An optimizer that clips by the norm of all gradients, or counts its parameters, would
come to something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratagem._tracing.captured import Captured, plain_function
from stratagem._tracing.optimizer_rules import VariableRule
from stratagem._tracing.source import definition_of, refused
from stratagem._tracing.step_form import GroupForm
from stratagem._tracing.step_recording import NumbersNeeded, ScratchNeeded
from stratagem._tracing.step_trace import trace_steps
from stratagem_proto.errors import UpdateFunctionError
from stratagem_proto.v1.update_program_pb2 import TracedStep


class RuledGroup(NamedTuple):
    """A param group, and how each of its variables is stepped.

    Attributes:
        values: The group, without parameters.
        rules: The rule of each variable.
    """

    values: Mapping[str, object]
    rules: Sequence[VariableRule]


def require_separate(captured: Captured, groups: Sequence[RuledGroup]) -> None:
    """Trace an optimizer with all groups, and compare it with the rules of single variables.

    Args:
        captured: What its code uses besides groups and state.
        groups: All of its groups.

    Raises:
        UpdateFunctionError: It steps a parameter otherwise where there are others.
    """
    # Each parameter as in its first step, and as in a later one.
    for which in (0, -1):
        forms = [GroupForm(one.values, [rule.forms[which] for rule in one.rules]) for one in groups]
        alone = [[rule.steps[which] for rule in one.rules] for one in groups]
        if _together(captured, forms) != alone:
            raise _depends_on_others(captured)


def _together(captured: Captured, forms: Sequence[GroupForm]) -> list[list[TracedStep]]:
    try:
        traced = trace_steps(captured, forms)
    except (NumbersNeeded, ScratchNeeded):
        raise _depends_on_others(captured) from None
    return [[step.message for step in group] for group in traced]


def _depends_on_others(captured: Captured) -> UpdateFunctionError:
    return refused(
        f"{captured.kind.__name__} steps a parameter otherwise where it has others as well",
        "servers step each variable by itself: let its step depend on nothing else, neither on how "
        "many parameters there are nor on their order",
        definition_of(plain_function(captured.kind.step)),
    )
