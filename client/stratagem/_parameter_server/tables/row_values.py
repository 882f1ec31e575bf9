"""Rows of a table as values of autograd, and those that a run has looked up so far."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from stratagem._core.tensors import IndexedSlices
from stratagem_proto.rows import summed


class RowValues(torch.autograd.Function):
    """Rows that were pulled, as a function of the table's parameter.

    Their gradient becomes a `torch.sparse_coo` one of the parameter, with one entry for each entry
    of a sparse gradient, in its order: what torch itself makes of a sparse lookup in a table of
    one's own.
    """

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, values: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.shape, ctx.device = table.shape, table.device
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        (rows,) = ctx.saved_tensors
        if gradient.is_sparse:
            places = gradient._indices()[0].to(rows.device)
            rows, gradient = rows[places], gradient._values()
        return as_sparse(rows, gradient.to(ctx.device), ctx.shape), None, None


class WholeValue(torch.autograd.Function):
    """The whole of a table that was pulled, as a function of its parameter."""

    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.device = table.device
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient.to(ctx.device), None


def as_sparse(rows: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return the uncoalesced sparse tensor of some rows."""
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=False)


def added_up(gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values and the rows of a sparse gradient with each row once, ascending.

    What there is for a row is added in its order, as in a dense gradient; torch's `coalesce` keeps
    to none, and is much slower.
    """
    slices = IndexedSlices.from_sparse(gradient)
    if gradient.is_coalesced():
        return slices.values, slices.indices
    rows, values = summed(slices.indices, slices.values)
    return values, rows


class PulledRows:
    """Keeps rows as they were when they were first looked up.

    So forward and backward, and several lookups, see one value of a row.
    """

    def __init__(self, row_shape: torch.Size, dtype: torch.dtype) -> None:
        self._rows = torch.empty(0, dtype=torch.int64)
        self._values = torch.empty(0, *row_shape, dtype=dtype)
        # Most rows are looked up once, and need not be found again.
        self._is_sorted = True

    @property
    def is_empty(self) -> bool:
        """Whether there are none yet."""
        return not len(self._rows)

    def missing(self, rows: torch.Tensor) -> torch.Tensor:
        """Return those rows that are not here; all without repetitions."""
        if self.is_empty:
            return rows
        return rows[~torch.isin(rows, self._rows, assume_unique=True)]

    def add(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Keep rows that were missing."""
        if self.is_empty:
            self._rows, self._values = rows, values
        else:
            self._rows = torch.cat([self._rows, rows])
            self._values = torch.cat([self._values, values])
        self._is_sorted = False

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values of rows that are here."""
        if not self._is_sorted:
            self._rows, order = self._rows.sort()
            self._values = self._values.index_select(0, order)
            self._is_sorted = True
        return self._values.index_select(0, torch.searchsorted(self._rows, rows))
