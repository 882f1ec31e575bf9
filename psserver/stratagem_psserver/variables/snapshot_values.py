"""What a snapshot has of each tensor: it is read in runs, or some of its rows are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from stratagem_psserver.tables.admission import Admission
from stratagem_psserver.tables.table_snapshot import TableSnapshot


class SnapshotValue(Protocol):
    """A tensor as it was at the moment of a snapshot."""

    def runs(self) -> Iterator[torch.Tensor]:
        """Yield it in runs of its rows; on any thread."""

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return some of its rows; on any thread. A tensor without dimensions has one."""


@dataclass(frozen=True)
class WholeValue:
    """The value of a variable, which gets other memory before it changes."""

    value: torch.Tensor

    def runs(self) -> Iterator[torch.Tensor]:
        """As `SnapshotValue.runs`: all at once."""
        yield self.value

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """As `SnapshotValue.rows`."""
        value = self.value
        return (value if value.dim() else value.reshape(1)).index_select(0, numbers)


@dataclass(frozen=True)
class ArrayValue:
    """An array of a table."""

    table: TableSnapshot
    number: int

    def runs(self) -> Iterator[torch.Tensor]:
        """As `SnapshotValue.runs`."""
        return self.table.runs(self.number)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """As `SnapshotValue.rows`."""
        return self.table.rows(self.number, numbers)


@dataclass(frozen=True)
class SightsValue:
    """The keys that a table's admission has counted, or how often it has seen each."""

    admission: Admission
    number: int

    @cached_property
    def _value(self) -> torch.Tensor:
        return self.admission.sights()[self.number]

    def runs(self) -> Iterator[torch.Tensor]:
        """As `SnapshotValue.runs`: all at once."""
        yield self._value

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """As `SnapshotValue.rows`."""
        return self._value.index_select(0, numbers)
