"""Looking up and indexing rows of sharded variables, as torch does it in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from stratagem._core.tensors import require_integers
from stratagem._parameter_server.variables.shards import merge
from stratagem_proto.division import PartRows
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, RowIndexError
from stratagem_proto.rows import distinct

if TYPE_CHECKING:
    from stratagem._parameter_server.variables.sharded_variable import ShardedVariable


def index_rows(
    shape: Sequence[int], index: Any, rows: Callable[[range], torch.Tensor]
) -> torch.Tensor:
    """Return `whole[index]` without more rows of the whole tensor than it takes.

    Args:
        shape: Shape of the whole tensor; it has one dimension at least.
        index: As for NumPy: integers, slices with steps of either sign, `...`, `None`, and boolean
            masks.
        rows: Returns some rows, which are given in ascending order.

    Raises:
        RowIndexError: A row is out of bounds, or there are too many indices.
        InvalidTypeError: There are lists or tensors of integers.

    Spec: SHV-7 to SHV-9.
    """
    items = _expanded(index, len(shape))
    place = next(i for i, item in enumerate(items) if item is not None)
    first = items[place]
    if isinstance(first, torch.Tensor):
        return _index(rows(range(shape[0])), items)
    if not isinstance(first, slice):
        row = _row(shape[0], first)
        items[place] = 0
        return _index(rows(range(row, row + 1)), items)
    selected = range(shape[0])[first]
    items[place] = slice(None, None, 1 if selected.step > 0 else -1)
    return _index(rows(selected if selected.step > 0 else selected[::-1]), items)


def _row(size: int, item: int) -> int:
    if not -size <= item < size:
        raise RowIndexError(f"index {item} of dimension 0 is out of bounds: there are {size} rows")
    return item % size


def _expanded(index: Any, dims: int) -> list[Any]:
    """The index with one item for each dimension, and those that add dimensions."""
    items = [_item(one) for one in (index if isinstance(index, tuple) else (index,))]
    free = dims - sum(_taken(item) for item in items)
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    if free < 0 or len(ellipses) > 1:
        raise RowIndexError(f"too many indices for {dims} dimensions: {index!r}")
    at = ellipses[0] if ellipses else len(items)
    return [*items[:at], *[slice(None)] * free, *items[at + 1 :]]


def _item(item: Any) -> Any:
    if isinstance(item, np.ndarray):
        item = torch.from_numpy(item)
    if isinstance(item, torch.Tensor) and item.dtype is torch.bool and item.dim():
        return item
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, bool | list | torch.Tensor) or not hasattr(item, "__index__"):
        raise InvalidTypeError(
            f"a ShardedVariable cannot be indexed by {item!r}; use integers, slices "
            "and boolean masks, or sparse_read() for rows by number"
        )
    return as_index(item)


def _taken(item: Any) -> int:
    """How many dimensions an item stands for."""
    if isinstance(item, torch.Tensor):
        return item.dim()
    return int(item is not None and item is not Ellipsis)


def _index(tensor: torch.Tensor, items: Sequence[Any]) -> torch.Tensor:
    """Index a tensor, also by slices with negative steps, which torch has not."""
    dim = 0
    ascending = []
    for item in items:
        if isinstance(item, slice) and item.step is not None and item.step < 0:
            start, stop, step = item.indices(tensor.shape[dim])
            last = tensor.shape[dim] - 1
            tensor, item = tensor.flip(dim), slice(last - start, last - stop, -step)
        ascending.append(item)
        dim += _taken(item)
    return tensor[tuple(ascending)]


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
            _within(shard, padding),
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


def _within(shard: PartRows, row: int | None) -> int | None:
    return None if row is None or row not in shard.numbers else shard.numbers.index(row)


def _require_no_norm(table: ShardedVariable, max_norm: float | None) -> None:
    if max_norm is not None:
        raise InvalidArgumentError(
            f"max_norm would have to write to ShardedVariable {table.name!r} while "
            "looking rows up; leave it out, and clip rows by assigning them"
        )
