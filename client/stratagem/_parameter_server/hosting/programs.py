"""The programs of optimizers' steps, as servers are told of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratagem._gradients import GroupStep, OptimizerStep
from stratagem_proto.programs.optimizers import Value, rule_named, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram

if TYPE_CHECKING:
    from stratagem._tracing.optimizer_rules import VariableRule

_Groups: TypeAlias = Sequence[Mapping[str, object]]
"""The hyperparameters of each param group, as torch has them."""


class _Encoded(NamedTuple):
    """A program that was sent.

    Attributes:
        groups: What it was made of; empty if somebody can change that in place.
        rules: The rule of each group, if it has one.
        text: The hyperparameters, which is exact, and tells 1 from 1.0 and 0.0 from -0.0.
        encoded: The part of an `UpdateHeader` that has the program.
    """

    groups: _Groups
    rules: Sequence[VariableRule | None]
    text: str
    encoded: bytes


class Programs:
    """Encodes the program of a step, anew only if it differs from the last one's."""

    def __init__(self) -> None:
        # By optimizer and class.
        self._last: dict[tuple[str, str], _Encoded] = {}

    def keep(self, optimizers: Collection[str]) -> None:
        """Forget the programs of all optimizers but these."""
        self._last = {name: one for name, one in self._last.items() if name[0] in optimizers}

    def encoded(self, step: OptimizerStep) -> bytes:
        """Return the part of an `UpdateHeader` that has the program of a step."""
        groups = [group.hyperparameters for group in step.groups]
        rules = [group.rule for group in step.groups]
        name = step.optimizer, step.class_name
        last = self._last.get(name)
        if last is None or rules != last.rules or not _are_same(groups, last.groups):
            last = self._last[name] = _encoded(step, groups, last)
        return last.encoded


def _encoded(step: OptimizerStep, groups: _Groups, last: _Encoded | None) -> _Encoded:
    rules = [group.rule for group in step.groups]
    traced = [rule.message for rule in rules if rule is not None]
    values = [_values_of(step, group) for group in step.groups]
    text = repr((values, [rule.encoded for rule in rules if rule is not None]))
    kept = groups if all(map(_is_fixed, groups)) else ()
    if last is not None and last.text == text:
        return last._replace(groups=kept, rules=rules)
    program = OptimizerProgram(
        name=step.optimizer,
        class_name=step.class_name,
        groups=map(encode_values, values),
        rules=traced,
    )
    header = UpdateHeader(program=UpdateProgram(optimizer=program))
    return _Encoded(kept, rules, text, header.SerializeToString())


def _values_of(step: OptimizerStep, group: GroupStep) -> Mapping[str, Value]:
    if group.rule is not None:
        return group.rule.values_of(group.hyperparameters)
    return values_of(rule_named(step.class_name), group.hyperparameters)


def _are_same(some: _Groups, others: _Groups) -> bool:
    """Return whether these are the very objects, which is quickly known."""
    if len(some) != len(others):
        return False
    return all(
        [*one] == [*other] and all(map(is_, one.values(), other.values()))
        for one, other in zip(some, others, strict=True)
    )


def _is_fixed(value: object) -> bool:
    """Return whether nobody can change a hyperparameter in place."""
    if isinstance(value, Mapping):
        return all(map(_is_fixed, value.values()))
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, bool | int | float | str)
