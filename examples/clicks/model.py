"""A deep learning recommendation model, whose tables are on parameter servers.

Naumov et al., "Deep learning recommendation model for personalization and recommendation systems",
arXiv:1906.00091.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

import stratagem


class DLRM(nn.Module):
    """Logits of clicks, from measurements (N, measurements) and ids (tables, N).

    Args:
        measurements: How many numbers an example has.
        rows: How many ids there are, for each table.
        dim: Size of the vectors.
    """

    def __init__(self, measurements: int, rows: Sequence[int], dim: int = 16) -> None:
        super().__init__()
        self.tables = self.made_tables(rows, dim)
        vectors = 1 + len(rows)
        self.bottom = _mlp(measurements, 128, 64, dim)
        self.top = _mlp(dim + vectors * (vectors - 1) // 2, 256, 128, 1)
        self.pairs = torch.tril_indices(vectors, vectors, -1)

    def made_tables(self, rows: Sequence[int], dim: int) -> nn.ModuleList:
        """A table for each column."""
        return nn.ModuleList(_table(count, dim) for count in rows)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        measured = self.bottom(dense).relu()
        vectors = torch.stack([measured, *self.embedded(ids)], 1)
        first, second = self.pairs
        products = (vectors @ vectors.mT)[:, first, second]
        logits: Tensor = self.top(torch.cat([measured, products], 1)).squeeze(1)
        return logits

    def embedded(self, ids: Tensor) -> list[Tensor]:
        """The vectors of the ids, (N, dim) for each table."""
        return [table(of) for table, of in zip(self.tables, ids, strict=True)]

    def prefetch(self, ids: Tensor) -> None:
        """Pull what `forward` looks up, of all tables at once."""
        stratagem.nn.prefetch(zip(self.tables, ids, strict=True))


def _table(rows: int, dim: int) -> nn.Embedding:
    table = stratagem.nn.Embedding(rows, dim)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    return table


def _mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes, with ReLUs between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
