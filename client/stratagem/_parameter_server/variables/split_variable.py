"""A module's parameter whose variable is several ones on the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from stratagem._core.assignment import Write
from stratagem._core.tensors import IndexedSlices
from stratagem._core.variable_creation import VariableTraits, operand
from stratagem._core.variables import Variable
from stratagem._parameter_server.variables.shards import Layout
from stratagem._parameter_server.variables.variable import RemoteVariable, remote_of

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy

Slots = Mapping[str, torch.Tensor]
"""An optimizer's state for one variable, by torch's keys."""

ValuesOfRows: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]
"""A gradient: its values, and the rows that they are of; None if they are of all."""


class SplitVariable(Variable):
    """A variable in several parts on servers, with one copy here.

    The copies of the parts are rows of one tensor, as the layout says.
    """

    def __init__(
        self, traits: VariableTraits, parts: Sequence[RemoteVariable], layout: Layout
    ) -> None:
        self._traits = traits
        self.parts = tuple(parts)
        self.layout = layout

    def _join(self, strategy: AnyStrategy, container: Variable | None = None) -> None:
        super()._join(strategy, container)
        for part in self.parts:
            part._join(strategy, container=self)

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.layout.total, *self.parts[0].shape[1:]))

    @property
    def device_name(self) -> str:
        """Full name of the device of the first part."""
        return self.parts[0].device_name

    def value(self) -> torch.Tensor:
        for part in self.parts:
            part.value()
        return self.parts[0].whole

    def _write(self, write: Write, value: Any) -> None:
        if isinstance(value, IndexedSlices):
            for part, share in zip(self.parts, self._shares(value), strict=True):
                part._write(write, share)
            return
        whole = operand(self, value)
        for part, rows in zip(self.parts, self.layout.shards, strict=True):
            part._write(write, rows.select(whole))

    def _shares(self, slices: IndexedSlices) -> list[IndexedSlices]:
        return [IndexedSlices(*one) for one in self._divided(slices.values, slices.indices)]

    def _divided(
        self, values: torch.Tensor, rows: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the values that each part gets, and the rows of the part that they are of."""
        return [(routed.of(values), routed.rows) for routed in self.layout.route(rows)]

    def gradients(self, gradient: torch.Tensor) -> Sequence[ValuesOfRows]:
        """Return the gradient of each part.

        Of a sparse one each part gets a share, an empty one if there are none of its rows, so that
        all parts count the same steps.
        """
        values, rows = values_of_rows(gradient)
        if rows is not None:
            return self._divided(values, rows)
        return [(shard.select(values), None) for shard in self.layout.shards]


def joined_slots(
    variable: Variable, slots: Mapping[RemoteVariable, Slots]
) -> Mapping[str, torch.Tensor]:
    """Return an optimizer's state for a variable, given that for each part.

    What has no rows, such as a count of steps, is equal for all parts.
    """
    parts = parts_of(variable)
    first = slots[parts[0]]
    if not isinstance(variable, SplitVariable) or len(parts) == 1:
        return first
    return {
        key: variable.layout.join([slots[part][key] for part in parts])
        if value.shape[:1] == parts[0].shape[:1]
        else value
        for key, value in first.items()
    }


def divided_slots(variable: Variable, slots: Slots) -> list[Slots]:
    """Return an optimizer's state for each part of a variable."""
    if not isinstance(variable, SplitVariable):
        return [slots]
    return [
        {
            key: rows.select(value) if value.shape[:1] == variable.shape[:1] else value
            for key, value in slots.items()
        }
        for rows in variable.layout.shards
    ]


def values_of_rows(gradient: torch.Tensor) -> ValuesOfRows:
    """Return a gradient, dense or `torch.sparse_coo`, as servers take it."""
    if gradient.layout is not torch.sparse_coo:
        return gradient, None
    slices = IndexedSlices.from_sparse(gradient)
    return slices.values, slices.indices


def parts_of(variable: Variable) -> tuple[RemoteVariable, ...]:
    """Return what a variable is on the servers; nothing if it is not there."""
    if isinstance(variable, SplitVariable):
        return variable.parts
    remote = remote_of(variable)
    return () if remote is None else (remote,)
