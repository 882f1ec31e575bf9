"""Cutting a global batch into the parts of the replicas."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from stratagem._core.nests import leaves, map_leaves
from stratagem_proto.errors import InvalidArgumentError, UnbatchedInputError


def split(batch: Any, parts: int) -> list[Any]:
    """Cut `batch` into consecutive parts along the first dimension of its leaves.

    Each part has ceil(rows / parts) rows; the last ones may have fewer, or none.

    Args:
        batch: A nest of tensors of shape [rows, ...], and of arrays of strings; sparse_coo tensors
            and ragged ones, which are nested tensors of layout torch.jagged, do as well. None stays
            None in each part.
        parts: How many.

    Returns:
        The parts, which share memory with `batch` where torch lets them.

    Raises:
        UnbatchedInputError: A leaf has no first dimension.
        InvalidArgumentError: Leaves differ in their numbers of rows, or have a layout that cannot
            be split.

    Spec: INP-11 to INP-13, INP-20, INP-24, INP-25.
    """
    return cut(batch, rows_in_chunk(rows_in(batch), parts), parts)


def rows_in_chunk(rows: int, parts: int) -> int:
    """Return the number of rows of each part of so many rows but the last ones."""
    return -(-rows // parts)


def cut(batch: Any, size: int, parts: int) -> list[Any]:
    """Cut `batch` as `split` does, into parts of `size` rows."""
    rows = rows_in(batch)
    borders = [min(index * size, rows) for index in range(parts + 1)]
    return [_rows_between(batch, start, end) for start, end in pairwise(borders)]


def without_rows(element: Any) -> Any:
    """Return a nest like `element` whose tensors have 0 rows.

    It has the dtypes and inner shapes of `element`; a scalar becomes a vector of length 0. It is
    what a replica gets that has no data in a round.

    Spec: INP-27, INP-28.
    """
    return map_leaves(_emptied, element)


def _emptied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and not leaf.dim():
        return leaf.new_empty(0)
    return _leaf_rows(leaf, 0, 0) if _has_rows(leaf) else leaf


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim > 0


def rows_in(batch: Any) -> int:
    """Return the number of rows that the leaves of `batch` have.

    Raises:
        UnbatchedInputError: A leaf has no first dimension.
        InvalidArgumentError: Leaves differ in their numbers of rows.
    """
    columns = [leaf for leaf in leaves(batch) if leaf is not None]
    for leaf in columns:
        if not _has_rows(leaf):
            raise UnbatchedInputError(
                f"Unable to get batched dataset: an element has the leaf {leaf!r}, "
                "which has no rows to share among several replicas; batch the dataset, "
                "for instance by DataLoader(dataset, batch_size=...)"
            )
    sizes = sorted({_row_count(leaf) for leaf in columns})
    if len(sizes) > 1:
        raise InvalidArgumentError(
            f"The leaves of a batch have {sizes} rows, so it cannot be split between "
            "replicas; let all of them have the same number"
        )
    return sizes[0] if sizes else 0


def _row_count(leaf: Any) -> int:
    # A nested tensor that is not jagged has no shape to ask.
    return int(leaf.size(0)) if isinstance(leaf, torch.Tensor) else len(leaf)


def _rows_between(batch: Any, start: int, end: int) -> Any:
    def rows_of(leaf: Any) -> Any:
        return None if leaf is None else _leaf_rows(leaf, start, end)

    return map_leaves(rows_of, batch)


def _leaf_rows(leaf: Any, start: int, end: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf[start:end]
    if leaf.layout is torch.sparse_coo:
        return leaf.narrow_copy(0, start, end - start)
    if leaf.layout is torch.jagged and leaf._ragged_idx == 1:
        return _ragged_rows(leaf, start, end)
    if leaf.layout is torch.strided and not leaf.is_nested:
        return leaf.narrow(0, start, end - start)
    raise InvalidArgumentError(
        f"A {'nested ' * leaf.is_nested}tensor of layout {leaf.layout} cannot be split "
        "between replicas; make it dense, sparse_coo, or a nested tensor of layout "
        "torch.jagged that is ragged in its second dimension"
    )


def _ragged_rows(ragged: Any, start: int, end: int) -> torch.Tensor:
    # torch slices no nested tensor along the batch, so it is cut by its parts. Those of a narrowed
    # one have gaps between them.
    whole = ragged if ragged.lengths() is None else ragged.contiguous()
    offsets = whole.offsets()
    values = whole.values()[offsets[start] : offsets[end]]
    return torch.nested.nested_tensor_from_jagged(values, offsets[start : end + 1] - offsets[start])
