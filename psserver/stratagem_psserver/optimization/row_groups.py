"""Rows of variables that are stepped again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from stratagem_proto.rows import WholeRows, are_ascending, are_whole
from stratagem_psserver.optimization.dry_run import StateLayout
from stratagem_psserver.optimization.hyperparameters import Settings
from stratagem_psserver.optimization.loans import Loan
from stratagem_psserver.optimization.repeated_groups import Gradients
from stratagem_psserver.optimization.row_loans import TensorRowLoan
from stratagem_psserver.optimization.sparse_rules import SparseRule
from stratagem_psserver.variables.store import Variable, VariableStore


class Taken(NamedTuple):
    """Rows on their way through a step.

    Attributes:
        rows: Which.
        gradient: Theirs, as a vector.
        value: A copy of theirs, as a vector.
        state: A copy of theirs by the optimizer's keys, as vectors; and of scalars.
    """

    rows: torch.Tensor
    gradient: torch.Tensor
    value: torch.Tensor
    state: Mapping[str, torch.Tensor]


@dataclass(eq=False)
class RowParameter:
    """A variable that has all its rows, with its state.

    Attributes:
        value: That of the variable.
        place: Of its gradient among those of the step.
        layout: Of the state.
        slots: Where the state is kept, by the optimizer's keys.
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
        self._states = {
            key: WholeRows(values[key]) for key in values.keys() - are_scalar
        }

    @classmethod
    def of(cls, loan: Loan, place: int) -> RowParameter | None:
        """It, if its state is there and its rows can be moved as wholes."""
        if not isinstance(loan, TensorRowLoan) or not loan.needs.takes_sparse:
            return None
        layout, slots, value = loan.needs.layout, loan.slots, loan.variable.value
        # Where elements are rows themselves, torch rounds what it adds once more.
        if len(slots) < len(layout) or value.dim() < 2:
            return None
        states = [slots[key].value for key in slots if not layout[key].is_scalar]
        are_movable = all(map(are_whole, [value, *states]))
        return cls(value, place, layout, slots) if are_movable else None

    def fits(self, gradients: Gradients) -> bool:
        """Whether its gradient is of distinct rows that there are, in order."""
        gradient, rows = gradients.each[self.place], gradients.rows[self.place]
        if rows is None or rows.dtype != torch.int64 or rows.dim() != 1:
            return False
        shape, dtype = (len(rows), *self.value.shape[1:]), self.value.dtype
        is_like = gradient.shape == shape and gradient.dtype == dtype
        return is_like and are_ascending(rows, len(self.value))

    def take(self, gradients: Gradients) -> Taken:
        """Copies of what the step is about."""
        rows = gradients.rows[self.place]
        assert rows is not None
        state = {key: value.clone() for key, value in self._scalars.items()}
        state |= {key: each.take(rows) for key, each in self._states.items()}
        gradient = gradients.each[self.place].view(-1)
        return Taken(rows, gradient, self._value.take(rows), state)

    def put(self, taken: Taken) -> None:
        """Writes rows that were stepped."""
        self._value.put(taken.rows, taken.value)
        for key, state in self._states.items():
            state.put(taken.rows, taken.state[key])
        for key, value in self._scalars.items():
            value.copy_(taken.state[key])


class RowGroup:
    """Variables whose rows are stepped by a rule for sparse gradients.

    Args:
        number: Of the param group.
        settings: Its hyperparameters, which steps were taken with.
        parameters: The variables.
    """

    def __init__(
        self, number: int, settings: Settings, parameters: Sequence[RowParameter]
    ) -> None:
        self._number, self._settings = number, settings
        self._parameters = parameters

    @property
    def has_rules(self) -> bool:
        """Whether there is one for each variable."""
        return all(self._rule(each) is not None for each in self._parameters)

    def accepts(self, groups: Sequence[Settings], gradients: Gradients) -> bool:
        if (settings := groups[self._number]) is not self._settings:
            for each in self._parameters:
                needs = settings.needs(each.value.dtype, sparse=True)
                if not needs.takes_sparse or needs.layout is not each.layout:
                    return False
            self._settings = settings
        return self.has_rules and all(each.fits(gradients) for each in self._parameters)

    def step(self, gradients: Gradients) -> None:
        # Copies are stepped, so that what fails has changed nothing.
        stepped = [self._stepped(each, gradients) for each in self._parameters]
        for parameter, rows in zip(self._parameters, stepped, strict=True):
            parameter.put(rows)

    def _stepped(self, parameter: RowParameter, gradients: Gradients) -> Taken:
        rule, rows = self._rule(parameter), parameter.take(gradients)
        assert rule is not None
        rule(self._settings.values, rows.value, rows.gradient, rows.state)
        return rows

    def _rule(self, parameter: RowParameter) -> SparseRule | None:
        return self._settings.sparse_rule(parameter.value.dtype)

    def commit(self, store: VariableStore) -> None:
        for parameter in self._parameters:
            for slot in parameter.slots.values():
                slot.version += 1
