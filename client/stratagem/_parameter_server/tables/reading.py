"""Reading rows of several tables by one request for each server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import torch

from stratagem._parameter_server.variables.shards import Routed, merge

if TYPE_CHECKING:
    from stratagem._parameter_server.tables.shard import TableShard
    from stratagem._parameter_server.tables.variable import TableVariable

Wanted = Mapping["TableVariable", torch.Tensor]
"""Rows of tables of one strategy: int64 vectors, ascending, without repetitions."""


def read(wanted: Wanted, training: bool = False) -> list[torch.Tensor]:
    """Return rows of tables as they are now.

    Args:
        wanted: Which.
        training: Whether they are only for a training step, and may be rounded.
    """
    routed = [table.layout.route(rows) for table, rows in wanted.items()]
    asked = [list(_asked(*one)) for one in zip(wanted, routed, strict=True)]
    found = _found(wanted, list(chain.from_iterable(asked)), training)
    return [
        merge([next(found) for _ in parts] or [table.no_rows], shares)
        for table, parts, shares in zip(wanted, asked, routed, strict=True)
    ]


def pull_missing(wanted: Wanted, training: bool) -> None:
    """Let tables have rows until the run ends; those that they have are not read.

    Args:
        wanted: Which.
        training: As for `read`.
    """
    new = {table: table.pulled.missing(rows) for table, rows in wanted.items()}
    missing = {table: rows for table, rows in new.items() if len(rows)}
    for table, values in zip(missing, read(missing, training), strict=True):
        table.pulled.add(missing[table], values)


def pull_together(wanted: Wanted, training: bool) -> None:
    """As `pull_missing`, unless other threads have it under way.

    Raises:
        RowIndexError: There is no such row.
    """
    with ExitStack() as pulling:
        # One order for all threads, which wait for each other.
        for table in sorted(wanted, key=lambda table: table.name):
            table.require_rows(wanted[table])
            pulling.enter_context(table.pulling)
        pull_missing(wanted, training)


def _asked(table: TableVariable, shares: list[Routed]) -> Iterator[tuple[TableShard, torch.Tensor]]:
    for part, share in zip(table.parts, shares, strict=True):
        if len(share.rows):
            yield part, share.rows


def _found(
    wanted: Wanted, asked: list[tuple[TableShard, torch.Tensor]], training: bool
) -> Iterator[torch.Tensor]:
    if not asked:
        return iter(())
    (store,) = {table.store for table in wanted}
    parts, rows = [part for part, _ in asked], [rows for _, rows in asked]
    return iter(store.rows(parts, rows, training))
