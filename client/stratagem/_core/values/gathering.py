"""Concatenation over replicas, as a pure function of its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.values.placement import components
from stratagem._core.values.reduction import dense, dimensions, require_equal_dtypes
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError


def gather(leaf: Any, axis: int) -> Any:
    """Return the components of `leaf` joined along `axis`, in replica order.

    A plain value is returned as it is.

    Raises:
        InvalidArgumentError: The components have no such axis, or differ in another one, or in
            dtype.
        UnimplementedError: `leaf` is an `IndexedSlices`.

    Spec: GAT-1 to GAT-7.
    """
    if isinstance(leaf, IndexedSlices):
        raise UnimplementedError(
            "gather does not support IndexedSlices; gather its values and its indices"
        )
    values = components(leaf)
    if values is None:
        return leaf
    return _concatenate([dense(value) for value in values], axis)


def _concatenate(tensors: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    require_equal_dtypes(tensors)
    if len({_shape_without(tensor, axis) for tensor in tensors}) > 1:
        raise InvalidArgumentError(
            f"Cannot gather values of shapes {[tuple(t.shape) for t in tensors]} along "
            f"axis {axis}: all other dimensions have to agree"
        )
    home = tensors[0].device
    return torch.cat([tensor.to(home) for tensor in tensors], dim=axis)


def _shape_without(tensor: torch.Tensor, axis: int) -> tuple[int | None, ...]:
    (dim,) = dimensions(tensor, axis)
    return (*tensor.shape[:dim], None, *tensor.shape[dim + 1 :])
