"""Looking up rows of sharded variables, as torch does it in one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from stratagem._core.tensors.indexed_slices import require_integers
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._parameter_server.variables.shards import merge
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.rows import distinct


def embedding(
    input: torch.Tensor,
    table: ShardedVariable,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    sparse: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Return `torch.nn.functional.embedding(input, table, ...)`.

    Where gradients are wanted every shard gets one, of `sparse` ones an empty one if it has none of
    the rows.

    Raises:
        InvalidTypeError: `input` is no tensor of integers.
        InvalidArgumentError: There is no such row, or `max_norm` is given.

    Spec: SHV-12.
    """
    _require_no_norm(table, max_norm)
    require_integers(input, table.name)
    if not torch.is_grad_enabled():
        return table.sparse_read(input)
    layout = table._layout
    padding = None if padding_idx is None else padding_idx % layout.total
    routed = layout.route(input.reshape(-1))
    values = table._values(table.variables)
    parts = [
        functional.embedding(
            one.rows.to(value.device),
            value,
            _within(shard.offset, shard.size, padding),
            sparse=sparse,
            **options,
        )
        for value, shard, one in zip(values, layout.shards, routed, strict=True)
    ]
    return merge(parts, routed).reshape(*input.shape, *table.shape[1:])


def embedding_bag(
    input: torch.Tensor,
    table: ShardedVariable,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    sparse: bool = False,
    padding_idx: int | None = None,
    **options: Any,
) -> torch.Tensor:
    """Return `torch.nn.functional.embedding_bag(input, table, ...)`.

    Raises:
        StratagemError: As for `embedding`.

    Spec: SHV-12.
    """
    _require_no_norm(table, max_norm)
    require_integers(input, table.name)
    rows, places = distinct(input)
    padding = None
    if padding_idx is not None:
        found = (rows == padding_idx % table.shape[0]).nonzero()
        padding = int(found) if found.numel() else None
    values = embedding(rows, table, sparse=sparse)
    return functional.embedding_bag(places, values, offsets, padding_idx=padding, **options)


LOOKUPS: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
}
"""What takes the place of torch's functions, by these."""


def _within(offset: int, size: int, row: int | None) -> int | None:
    if row is None or not offset <= row < offset + size:
        return None
    return row - offset


def _require_no_norm(table: ShardedVariable, max_norm: float | None) -> None:
    if max_norm is not None:
        raise InvalidArgumentError(
            f"max_norm would have to write to ShardedVariable {table.name!r} while "
            "looking rows up; leave it out, and clip rows by assigning them"
        )
