"""Turn the step of an optimizer into a rule that parameter servers run for each variable.

The step is called twice with stand-ins for one parameter: without state, and with the state that
this has made. What it does is recorded. Hyperparameters are inputs of the recorded programs, unless
the code has to know them; other numbers that the code uses are constants, and when they change the
step is traced again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.optim import LBFGS, Optimizer

from stratagem._core.update_functions import require_own_step
from stratagem._tracing.lifting import Captured, plain_function
from stratagem._tracing.source import Location, definition_of, refused
from stratagem._tracing.step_trace import (
    GroupForm,
    NumbersNeeded,
    ScratchNeeded,
    StepForm,
    StepTrace,
    trace_step,
    trace_steps,
)
from stratagem_proto.errors import InvalidArgumentError, UpdateFunctionError
from stratagem_proto.programs.optimizers import Value
from stratagem_proto.v1.update_program_pb2 import TracedRule, TracedStep
from stratagem_proto.wire.tensors import encode_dtype

_MOST_RULES = 1024


@dataclass(frozen=True, eq=False)
class VariableRule:
    """How an optimizer steps variables of a shape and dtype, in a param group.

    Attributes:
        message: The rule, as servers get it.
        numbers: The types of the state's Python numbers, by key.
        forms: What is known of the first step and of later ones, if these differ.
    """

    message: TracedRule
    numbers: Mapping[str, type]
    forms: tuple[StepForm, ...]

    @cached_property
    def encoded(self) -> bytes:
        """The rule, encoded; equal for rules that are."""
        return self.message.SerializeToString(deterministic=True)

    @property
    def steps(self) -> tuple[TracedStep, ...]:
        """The step of each form."""
        return (self.message.first, self.message.later)[: len(self.forms)]

    @cached_property
    def _hyperparameters(self) -> frozenset[str]:
        steps = (self.message.first, self.message.later)
        names = (one.hyperparameter for step in steps for one in step.inputs)
        return frozenset(names) - {""}

    def values_of(self, group: Mapping[str, object]) -> dict[str, Value]:
        """Return the hyperparameters of a param group that the rule takes."""
        values = numbers_of(group)
        return {name: values[name] for name in sorted(self._hyperparameters)}


def numbers_of(group: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the numbers in a param group by name: "lr", "betas[0]"."""
    return {name: one for key, value in group.items() for name, one in _numbers_in(key, value)}


def _numbers_in(name: str, value: object) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, tuple | list):
        for index, one in enumerate(value):
            yield from _numbers_in(f"{name}[{index}]", one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


class RuleTracer:
    """Traces the steps of one optimizer, anew only where they may differ.

    Args:
        optimizer: The optimizer, of a class that is not on the servers' list.

    Raises:
        InvalidArgumentError: It cannot be traced for what it is.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        _require_traceable(optimizer)
        self._optimizer = optimizer
        self._constant_numbers: frozenset[str] = frozenset()
        self._rules: OrderedDict[Hashable, VariableRule] = OrderedDict()

    @property
    def constants(self) -> frozenset[str]:
        """The hyperparameters whose values are part of the rules."""
        return self._constant_numbers

    def captured(self) -> Captured:
        """Return what steps use at present besides groups and state."""
        require_own_step(self._optimizer)
        return Captured(self._optimizer)

    def rule(
        self, captured: Captured, group: Mapping[str, object], shape: torch.Size, dtype: torch.dtype
    ) -> VariableRule:
        """Return the rule of variables of a shape and dtype.

        Args:
            captured: As it is now.
            group: Their param group, without parameters.
            shape: Their shape.
            dtype: Their dtype.

        Raises:
            UpdateFunctionError: A server cannot do what the step does. The message names file, line
                and cure.
        """
        key = (captured.key, self._group_key(group), shape, dtype, torch.get_default_dtype())
        known = self._rules.get(key) if captured.is_predictable else None
        if known is None:
            known = self._traced(captured, group, StepForm(shape, dtype))
            key = (captured.key, self._group_key(group), *key[2:])
            self._rules[key] = known
            if len(self._rules) > _MOST_RULES:
                self._rules.popitem(last=False)
        return known

    def _group_key(self, group: Mapping[str, object]) -> Hashable:
        """Describe a group by all that is constant in its rules."""
        numbers, constants = numbers_of(group), self._constant_numbers
        known = tuple(
            (name, type(one), repr(one) if name in constants else "")
            for name, one in numbers.items()
        )
        return known, repr([(key, _without_numbers(value)) for key, value in group.items()])

    def _traced(
        self, captured: Captured, group: Mapping[str, object], form: StepForm
    ) -> VariableRule:
        while True:
            try:
                return self._traced_with(captured, group, form)
            except NumbersNeeded as needed:
                if needed.names <= self._constant_numbers:
                    raise refused(
                        f"{captured.kind.__name__} keeps numbers of earlier steps where servers "
                        "see none",
                        "keep them in self.state[parameter]",
                        definition_of(plain_function(captured.kind.step)),
                    ) from None
                self._constant_numbers |= needed.names
            except ScratchNeeded:
                form = replace(form, has_scratch=True)
            # What was interrupted may have left its stand-ins in copies of lists and dicts.
            captured = self.captured()

    def _traced_with(
        self, captured: Captured, group: Mapping[str, object], form: StepForm
    ) -> VariableRule:
        form = replace(form, constants=self._constant_numbers)
        first = trace_step(captured, group, form)
        if not first.state:
            return _rule([form], [first])
        form_later = replace(form, state=first.state)
        later = trace_step(captured, group, form_later)
        _require_same_state(first, later, definition_of(plain_function(captured.kind.step)))
        return _rule([form, form_later], [first, later])


def _rule(forms: Sequence[StepForm], steps: Sequence[StepTrace]) -> VariableRule:
    state, (first, later) = steps[0].state, [*(each.message for each in steps), None][:2]
    message = TracedRule(first=first, later=later)
    for key, kept in state.items():
        message.state.add(
            key=key,
            dtype=encode_dtype(kept.dtype),
            is_scalar=kept.is_scalar,
            is_number=kept.number is not None,
        )
    numbers = {key: type(kept.number) for key, kept in state.items() if kept.number is not None}
    return VariableRule(message, numbers, tuple(forms))


def _require_same_state(first: StepTrace, later: StepTrace, location: Location) -> None:
    before = {key: kept.form for key, kept in first.state.items()}
    after = {key: kept.form for key, kept in later.state.items()}
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            raise refused(
                f"the state {key!r} is {before.get(key, 'absent')} after the first step of a "
                f"parameter and {after.get(key, 'absent')} after the second",
                "make all of the state in the first step, of the types that it keeps",
                location,
            )


def _without_numbers(value: object) -> object:
    if isinstance(value, tuple | list):
        return type(value), [_without_numbers(one) for one in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "a number" if is_number else value


def _require_traceable(optimizer: Optimizer) -> None:
    if isinstance(optimizer, LBFGS):
        raise InvalidArgumentError(
            "LBFGS computes the loss several times in a step, each time with other values, and "
            "decides by the results when to stop; parameter servers take a step with one gradient. "
            "Train with LBFGS in a program without a strategy, or use another optimizer"
        )
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params" and not _can_be_told(value):
                raise InvalidArgumentError(
                    f"param_groups[{number}][{key!r}] of {type(optimizer).__name__} is a "
                    f"{type(value).__name__}; parameter servers take numbers, flags, text and "
                    "tuples of these. Give a Python number in place of a tensor"
                )


def _can_be_told(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_can_be_told, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


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
