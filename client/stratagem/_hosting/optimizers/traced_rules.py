"""The rules of an optimizer that servers do not know by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from stratagem._core.variables.variable import Variable
from stratagem._gradients.step import GroupStep, hyperparameters_of
from stratagem._hosting.optimizers.rules import Groups, State
from stratagem._tracing.captured import Captured
from stratagem._tracing.optimizer_rules import RuleTracer, VariableRule

if TYPE_CHECKING:
    from stratagem._hosting.hosting import Hosting


class TracedRules:
    """The rules of an optimizer of any other class, one for each kind of variable."""

    are_traced = True

    def __init__(self, optimizer: Optimizer) -> None:
        self._tracer = RuleTracer(optimizer)
        self._name = type(optimizer).__name__

    def check_group(self, group: Mapping[str, Any]) -> None:
        pass

    def check_variables(self, group: Mapping[str, Any], hosting: Hosting) -> None:
        captured = self._tracer.captured()
        for variable in _known(group):
            rule = self._rule(captured, group, variable)
            hosting.require_steppable(variable, rule, self._name)

    def _rule(
        self, captured: Captured, group: Mapping[str, Any], variable: Variable
    ) -> VariableRule:
        own = hyperparameters_of(group)
        return self._tracer.rule(captured, own, variable.shape, variable.dtype)

    def divided(self, steps: tuple[GroupStep, ...], groups: Groups) -> tuple[GroupStep, ...]:
        captured = self._tracer.captured()
        return tuple(
            part
            for step, group in zip(steps, groups, strict=True)
            for part in self._parts(captured, step, group)
        )

    def _parts(
        self, captured: Captured, step: GroupStep, group: Mapping[str, Any]
    ) -> Iterator[GroupStep]:
        # All variables count, so that workers with other gradients number the rules alike.
        kinds = {(one.shape, one.dtype): one for one in _known(group)}
        by_kind = {kind: self._rule(captured, group, one) for kind, one in kinds.items()}
        rules = {rule.encoded: rule for rule in by_kind.values()}
        if len(rules) == 1:
            # Nearly always; the step keeps the object by which its variables are known.
            yield step._replace(rule=next(iter(rules.values())))
            return
        for encoded, rule in rules.items():
            pairs = [
                pair
                for pair in zip(step.variables, step.gradients, strict=True)
                if by_kind[pair[0].shape, pair[0].dtype].encoded == encoded
            ]
            variables, gradients = [one for one, _ in pairs], [each for _, each in pairs]
            yield GroupStep(step.hyperparameters, variables, gradients, rule)

    def as_tensors(self, state: State) -> Mapping[str, torch.Tensor]:
        return {key: _as_tensor(value) for key, value in state.items()}

    def as_local(self, groups: Groups, index: int, variable: Variable, state: State) -> State:
        rule = self._rule(self._tracer.captured(), groups[index], variable)
        numbers = rule.numbers
        return {
            key: numbers[key](value.item()) if key in numbers else value
            for key, value in state.items()
        }


def _known(group: Mapping[str, Any]) -> Iterable[Variable]:
    return [one for one in group["params"].variables() if one is not None]


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
