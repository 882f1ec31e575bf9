"""The rows of a table that a run of the replicas has looked up so far."""

from __future__ import annotations

import torch


class PulledRows:
    """Keeps rows as they were when they were first looked up.

    So forward and backward, and several lookups, see one value of a row.

    Args:
        row_shape: Shape of a row.
        dtype: Type of the elements.
    """

    def __init__(self, row_shape: torch.Size, dtype: torch.dtype) -> None:
        self._rows = torch.empty(0, dtype=torch.int64)
        self._values = torch.empty(0, *row_shape, dtype=dtype)

    def missing(self, rows: torch.Tensor) -> torch.Tensor:
        """Return those rows that are not here.

        Args:
            rows: int64 vector, ascending and without repetitions.
        """
        if not len(self._rows):
            return rows
        return rows[~torch.isin(rows, self._rows, assume_unique=True)]

    def add(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Keep rows that were missing."""
        if not len(self._rows):
            self._rows, self._values = rows, values
            return
        self._rows, order = torch.cat([self._rows, rows]).sort()
        self._values = torch.cat([self._values, values]).index_select(0, order)

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the values of rows that are here."""
        if len(rows) == len(self._rows):
            return self._values
        return self._values.index_select(0, torch.searchsorted(self._rows, rows))
