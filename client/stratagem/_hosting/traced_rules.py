"""The rules of an optimizer that servers do not know by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.optim import Optimizer

from stratagem._core.variables import Variable
from stratagem._gradients import GroupStep, hyperparameters_of
from stratagem._hosting.wrapped_optimizer import Groups, Rules, State
from stratagem._tracing.lifting import Captured
from stratagem._tracing.optimizer_rules import (
    RuledGroup,
    RuleTracer,
    VariableRule,
    require_separate,
)

if TYPE_CHECKING:
    from stratagem._hosting.hosting import Hosting

Kind: TypeAlias = tuple[torch.Size, torch.dtype]
RulesByKind: TypeAlias = Mapping[Kind, VariableRule]

_MOST_CHECKED = 64


class TracedRules(Rules):
    """The rules of an optimizer of any other class, one for each kind of variable."""

    are_traced = True

    def __init__(self, optimizer: Optimizer) -> None:
        self._tracer = RuleTracer(optimizer)
        self._name = type(optimizer).__name__
        self._separate: set[Hashable] = set()

    def check_variables(self, group: Mapping[str, Any], hosting: Hosting) -> None:
        captured = self._tracer.captured()
        for variable in _known(group):
            rule = self._rule(captured, group, variable)
            hosting.require_steppable(variable, rule, self._name)

    def check_together(self, groups: Groups) -> None:
        captured = self._tracer.captured()
        self._require_separate(captured, groups, self._all_rules(captured, groups))

    def _rule(
        self, captured: Captured, group: Mapping[str, Any], variable: Variable
    ) -> VariableRule:
        own = hyperparameters_of(group)
        return self._tracer.rule(captured, own, variable.shape, variable.dtype)

    def _all_rules(self, captured: Captured, groups: Groups) -> list[RulesByKind]:
        """Return the rules of each group, all with the same constants."""
        while True:
            constants = self._tracer.constants
            rules: list[RulesByKind] = []
            for group in groups:
                # All variables count, so that workers with other gradients number the rules alike.
                kinds = {_kind_of(one): one for one in _known(group)}
                rules.append({kind: self._rule(captured, group, kinds[kind]) for kind in kinds})
            if self._tracer.constants == constants:
                return rules

    def _require_separate(
        self, captured: Captured, groups: Groups, rules: Sequence[RulesByKind]
    ) -> None:
        ruled = [
            RuledGroup(hyperparameters_of(group), _few_of_each(group, by_kind))
            for group, by_kind in zip(groups, rules, strict=True)
        ]
        key = tuple(tuple(group.rules) for group in ruled)
        if key not in self._separate:
            require_separate(captured, ruled)
            if len(self._separate) >= _MOST_CHECKED:
                self._separate.clear()
            self._separate.add(key)

    def divided(self, steps: tuple[GroupStep, ...], groups: Groups) -> tuple[GroupStep, ...]:
        captured = self._tracer.captured()
        rules = self._all_rules(captured, groups)
        self._require_separate(captured, groups, rules)
        return tuple(
            part
            for step, by_kind in zip(steps, rules, strict=True)
            for part in _parts(step, by_kind)
        )

    def as_tensors(self, state: State) -> Mapping[str, torch.Tensor]:
        return {key: _as_tensor(value) for key, value in state.items()}

    def as_local(self, groups: Groups, index: int, variable: Variable, state: State) -> State:
        rule = self._rule(self._tracer.captured(), groups[index], variable)
        numbers = rule.numbers
        return {
            key: numbers[key](value.item()) if key in numbers else value
            for key, value in state.items()
        }


def _parts(step: GroupStep, by_kind: RulesByKind) -> Iterator[GroupStep]:
    rules = {rule.encoded: rule for rule in by_kind.values()}
    if len(rules) == 1:
        # Nearly always; the step keeps the object by which its variables are known.
        yield step._replace(rule=next(iter(rules.values())))
        return
    for encoded, rule in rules.items():
        pairs = [
            pair
            for pair in zip(step.variables, step.gradients, strict=True)
            if by_kind[_kind_of(pair[0])].encoded == encoded
        ]
        variables, gradients = [one for one, _ in pairs], [each for _, each in pairs]
        yield GroupStep(step.hyperparameters, variables, gradients, rule)


def _few_of_each(group: Mapping[str, Any], by_kind: RulesByKind) -> list[VariableRule]:
    """Return the rules of the variables of a group, of at most two of each kind."""
    counts = Counter(map(_kind_of, _known(group)))
    return [rule for kind, rule in by_kind.items() for _ in range(min(counts[kind], 2))]


def _kind_of(variable: Variable) -> Kind:
    return variable.shape, variable.dtype


def _known(group: Mapping[str, Any]) -> Iterable[Variable]:
    return [one for one in group["params"].variables() if one is not None]


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
