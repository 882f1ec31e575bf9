"""Groups of variables whose rows are stepped repeatedly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from stratagem_proto.rows import Taken, WholeRows, are_ascending, are_whole
from stratagem_psserver.fast.repeated_groups import Gradients
from stratagem_psserver.fast.sparse_rules import SparseRule, sparse_rule
from stratagem_psserver.optimization.bindings import ParameterBinding
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.optimization.hyperparameters import GroupSettings
from stratagem_psserver.optimization.row_bindings import TensorRowBinding
from stratagem_psserver.variables.store import Variable, VariableStore


class Stepped(NamedTuple):
    """Copies of rows after a step.

    Attributes:
        value: The rows of the variable.
        state: The rows of the state, by the optimizer's keys.
        scalars: The state that is one number for all rows, by the optimizer's keys.
    """

    value: Taken
    state: Mapping[str, Taken]
    scalars: Mapping[str, torch.Tensor]


@dataclass(eq=False)
class RowParameter:
    """A variable that is not a table, whose rows are stepped, with its state.

    Attributes:
        value: The variable's value.
        place: The place of its gradient among those of the step.
        layout: The layout of the state.
        slots: The variables that keep the state, by the optimizer's keys.
    """

    value: torch.Tensor
    place: int
    layout: StateLayout
    slots: Mapping[str, Variable]

    def __post_init__(self) -> None:
        self._value = WholeRows(self.value)
        values = {key: slot.value for key, slot in self.slots.items()}
        are_scalar = {key for key in values if self.layout[key].is_scalar}
        self._scalars = {key: values[key] for key in are_scalar}
        self._states = {key: WholeRows(values[key]) for key in values.keys() - are_scalar}

    @classmethod
    def of(cls, binding: ParameterBinding, place: int) -> RowParameter | None:
        """Return the variable if its state exists and its rows can be copied whole."""
        if not isinstance(binding, TensorRowBinding) or not binding.needs.takes_sparse:
            return None
        layout, slots, value = (binding.needs.layout, binding.slots, binding.variable.value)
        # For rows of a single number, torch rounds differently from the rules here.
        if len(slots) < len(layout) or value.dim() < 2:
            return None
        states = [slots[key].value for key in slots if not layout[key].is_scalar]
        are_movable = all(map(are_whole, [value, *states]))
        return cls(value, place, layout, slots) if are_movable else None

    def fits(self, gradients: Gradients) -> bool:
        """Return whether its gradient has distinct rows that exist, in ascending order."""
        gradient, rows = gradients.each[self.place], gradients.rows[self.place]
        if rows is None or rows.dtype != torch.int64 or rows.dim() != 1:
            return False
        count, *row = self.value.shape
        is_like = gradient.dtype == self.value.dtype
        is_like = is_like and gradient.shape == (rows.numel(), *row)
        return is_like and are_ascending(rows, count)

    def stepped(self, rule: SparseRule, settings: GroupSettings, gradients: Gradients) -> Stepped:
        """Step copies of the rows, so that a failure has changed nothing."""
        rows, gradient = gradients.rows[self.place], gradients.each[self.place]
        assert rows is not None
        indices = rows.numpy()
        scalars = {key: value.clone() for key, value in self._scalars.items()}
        taken = {key: each.take(indices) for key, each in self._states.items()}
        value = self._value.take(indices)
        state = {key: each.elements for key, each in taken.items()}
        rule(settings.values, value.elements, gradient.view(-1), scalars | state)
        return Stepped(value, taken, scalars)

    def put(self, stepped: Stepped) -> None:
        """Write the rows back."""
        self._value.put(stepped.value)
        for key, state in self._states.items():
            state.put(stepped.state[key])
        for key, value in self._scalars.items():
            value.copy_(stepped.scalars[key])


class RowGroup:
    """Variables whose rows are stepped by a rule for sparse gradients.

    Args:
        number: The number of the param group.
        settings: The hyperparameters of the last step.
        parameters: The variables.
    """

    is_by_rows = True

    def __init__(
        self, number: int, settings: GroupSettings, parameters: Sequence[RowParameter]
    ) -> None:
        self._number, self._parameters = number, parameters
        self._settings, self._rules = settings, self._rules_of(settings)
        self._stepped: list[Stepped] = []

    @property
    def has_rules(self) -> bool:
        """Whether there is a rule for each variable."""
        return len(self._rules) == len(self._parameters)

    def accepts(self, groups: Sequence[GroupSettings], gradients: Gradients) -> bool:
        if (settings := groups[self._number]) is not self._settings:
            for each in self._parameters:
                needs = settings.needs(each.value.dtype, sparse=True)
                if not needs.takes_sparse or needs.layout is not each.layout:
                    return False
            self._settings, self._rules = settings, self._rules_of(settings)
        return self.has_rules and all([one.fits(gradients) for one in self._parameters])

    def step(self, gradients: Gradients) -> None:
        settings, each = self._settings, zip(self._parameters, self._rules, strict=True)
        self._stepped = [one.stepped(rule, settings, gradients) for one, rule in each]

    def put(self) -> None:
        # The copies are as large as a request, so they must not stay in memory.
        stepped, self._stepped = self._stepped, []
        for parameter, rows in zip(self._parameters, stepped, strict=True):
            parameter.put(rows)

    def _rules_of(self, settings: GroupSettings) -> Sequence[SparseRule]:
        rules = [_rule_of(settings, each.value.dtype) for each in self._parameters]
        return [rule for rule in rules if rule is not None]

    def commit(self, store: VariableStore) -> None:
        for parameter in self._parameters:
            for slot in parameter.slots.values():
                slot.version += 1


def _rule_of(settings: GroupSettings, dtype: torch.dtype) -> SparseRule | None:
    if not settings.is_ordinary(dtype):
        return None
    return sparse_rule(settings.rule, settings.values, dtype)
