"""Pulling rows before they are looked up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn

from stratagem._core.contexts.context import current_replica_id
from stratagem._core.tensors.indexed_slices import require_integers
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.shard import pull_together
from stratagem._parameter_server.tables.variable import TableVariable


def prefetch(lookups: Iterable[tuple[nn.Module | torch.Tensor, torch.Tensor]]) -> None:
    """Pull the rows of many lookups that are to come, by one request of each server.

    A lookup takes a round trip to the servers. This takes one for all together, which then find the
    rows here::

        def forward(self, users, items):
            stratagem.nn.prefetch([(self.users, users), (self.items, items)])
            return (self.users(users) * self.items(items)).sum(1)

    What is no table on servers is left out; outside of replicas, where nothing is kept, it does
    nothing.

    Args:
        lookups: What is looked up in, an embedding or its weight, and the rows or keys: an integer
            tensor of any shape. A table may come several times.

    Raises:
        RowIndexError: There is no such row.
        InvalidTypeError: An input is no tensor of integers.
    """
    if current_replica_id() is None:
        return
    inputs: dict[TableVariable, list[torch.Tensor]] = defaultdict(list)
    for embedding, input in lookups:
        table = _table(embedding)
        if table is not None:
            require_integers(input, table.name)
            inputs[table].append(input.flatten())
    wanted = {table: _distinct(each) for table, each in inputs.items()}
    pull_together(wanted, training=torch.is_grad_enabled())


def _table(embedding: nn.Module | torch.Tensor) -> TableVariable | None:
    weight = embedding.weight if isinstance(embedding, nn.Module) else embedding
    table = weight.source if isinstance(weight, TableParameter) else None
    return table if isinstance(table, TableVariable) else None


def _distinct(inputs: list[torch.Tensor]) -> torch.Tensor:
    rows: torch.Tensor = torch.cat(inputs).unique()
    return rows.to("cpu", torch.int64)
