"""The click model, as all contestants with PyTorch build it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import stratagem
from benchmarks.peers.clicks import DIM, MEASUREMENTS, RATE, ROWS, SPREAD, TABLE_RATE
from examples.clicks.model import DLRM

MakeTable = Callable[[int], nn.Embedding]


def our_table(rows: int) -> nn.Embedding:
    """Return a table as the example has it."""
    return stratagem.nn.Embedding(rows, DIM)


def sparse_table(rows: int) -> nn.Embedding:
    """Return a table of torch with sparse gradients."""
    return nn.Embedding(rows, DIM, sparse=True)


class ClickModel(DLRM):
    """The model of the example, with tables of some kind and weights from the file.

    Args:
        table: Makes a table of so many rows.
        weights: Of the dense layers, as in `clicks.Log`.
        joined: Whether the rows of all columns are in one table, behind each other.
    """

    def __init__(self, table: MakeTable, weights: Sequence[Any], joined: bool = False) -> None:
        self._made, self._joined = table, joined
        super().__init__(MEASUREMENTS, ROWS, DIM)
        self._offsets = torch.tensor([0, *accumulate(ROWS[:-1])]).unsqueeze(1)
        with torch.no_grad():
            for parameter, weight in zip(self._dense(), weights, strict=True):
                parameter.copy_(torch.from_numpy(weight))

    def made_tables(self, rows: Sequence[int], dim: int) -> nn.ModuleList:
        """Return a table for each column, or one for all."""
        tables = [self._made(count) for count in ([sum(rows)] if self._joined else rows)]
        for each in tables:
            nn.init.uniform_(each.weight, -SPREAD, SPREAD)
        return nn.ModuleList(tables)

    def _dense(self) -> list[nn.Parameter]:
        return [*self.bottom.parameters(), *self.top.parameters()]

    def loss(self, dense: Tensor, ids: Tensor, clicked: Tensor) -> Tensor:
        """Return the mean cross entropy of a batch."""
        return functional.binary_cross_entropy_with_logits(self(dense, ids), clicked)

    def embedded(self, ids: Tensor) -> list[Tensor]:
        """Return the vectors of a batch, (N, 16) for each column."""
        if self._joined:
            return [*self.tables[0](ids + self._offsets)]
        return super().embedded(ids)

    def adagrad(self) -> torch.optim.Adagrad:
        """Return the optimizer of the example."""
        groups: list[dict[str, Any]] = [
            {"params": [*self.tables.parameters()], "lr": TABLE_RATE},
            {"params": self._dense()},
        ]
        return torch.optim.Adagrad(groups, RATE)
