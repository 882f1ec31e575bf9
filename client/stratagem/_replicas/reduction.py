"""Sums and means over replicas, as pure functions of their values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import torch

from stratagem import _devices
from stratagem._enums import ReduceOp
from stratagem._replicas.nests import map_leaves, opened
from stratagem._replicas.values import DistributedValues, Mirrored
from stratagem._variables.indexed_slices import IndexedSlices
from stratagem._variables.operators import TensorStandIn
from stratagem._variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

Axis = int | tuple[int, ...] | list[int]


def reduce_nest(op: ReduceOp, nest: Any, replicas: int) -> Any:
    """Reduce each leaf of `nest` over its replicas.

    Args:
        op: The reduction.
        nest: Distributed values; a plain value counts as equal on all replicas.
        replicas: The number of replicas.

    Raises:
        InvalidArgumentError: A plain value is to be summed, or the components of
            a value differ in shape. Spec: RED-5 to RED-7, RED-15 to RED-23.
    """

    def reduced(leaf: Any) -> Any:
        values = components(leaf)
        if values is not None:
            return combine(op, values)
        if op is ReduceOp.SUM and replicas > 1:
            raise InvalidArgumentError(
                f"A non-DistributedValues value {leaf!r} cannot be reduced with the "
                f"given reduce op {op}: whether its {replicas} copies are meant is "
                "unclear; use ReduceOp.MEAN or multiply it yourself"
            )
        return leaf

    return map_leaves(reduced, nest)


def components(leaf: Any) -> tuple[Any, ...] | None:
    """Return what each replica has of `leaf`; None if it is a plain value."""
    if isinstance(leaf, DistributedValues):
        return leaf.values
    copied = isinstance(leaf, Variable) and len(leaf.values) > 1
    return leaf.values if copied else None


def combine(op: ReduceOp, values: Sequence[Any]) -> torch.Tensor | IndexedSlices:
    """Add `values` in their order, starting from the first; MEAN also divides.

    Rows (`IndexedSlices`) are concatenated, so that they stay sparse.

    Raises:
        InvalidArgumentError: The values differ in shape. Spec: RED-6.
    """
    if all(isinstance(value, IndexedSlices) for value in values):
        return _combine_rows(op, values)
    tensors = [dense(value) for value in values]
    _require_equal_shapes(tensors)
    home = tensors[0].device
    total = fold(torch.add, (tensor.to(home) for tensor in tensors))
    return total if op is ReduceOp.SUM else quotient(total, len(tensors))


def _combine_rows(op: ReduceOp, parts: Sequence[IndexedSlices]) -> IndexedSlices:
    home = parts[0].device
    rows = torch.cat([part.values.to(home) for part in parts])
    indices = torch.cat([part.indices.to(home) for part in parts])
    values = rows if op is ReduceOp.SUM else quotient(rows, len(parts))
    return IndexedSlices(values, indices, parts[0].dense_shape)


def dense(value: Any) -> torch.Tensor:
    if isinstance(value, IndexedSlices):
        return value.to_dense()
    if isinstance(value, TensorStandIn):
        value = value._operand()
    return torch.as_tensor(value)


def _require_equal_shapes(tensors: Sequence[torch.Tensor]) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidArgumentError(
            f"Cannot reduce values whose shapes differ between replicas: {shapes}; "
            "pass `axis` to reduce the differing dimension as well"
        )


def quotient(total: torch.Tensor, count: int) -> torch.Tensor:
    """Return a mean; that of integers is float64. Spec: RED-7."""
    if not (total.is_floating_point() or total.is_complex()):
        total = total.to(torch.float64)
    return total / count


def reduce_axes(op: ReduceOp, nest: Any, axis: Axis, replicas: int) -> Any:
    """Reduce each leaf over `axis` within its components, then over replicas.

    A MEAN weights each component by the number of elements it reduces.

    Raises:
        InvalidArgumentError: `axis` does not exist.
        InvalidTypeError: `axis` is neither an integer nor several.
            Spec: RED-8 to RED-14, RED-19.
    """

    def reduced(leaf: Any) -> torch.Tensor:
        values = components(leaf) or (leaf,) * replicas
        return _reduce_components(op, [dense(value) for value in values], axis)

    return map_leaves(reduced, nest)


def _reduce_components(
    op: ReduceOp, components: Sequence[torch.Tensor], axis: Axis
) -> torch.Tensor:
    total, count = axis_sum(components, axis)
    return total if op is ReduceOp.SUM else quotient(total, count)


def axis_sum(
    components: Sequence[torch.Tensor], axis: Axis
) -> tuple[torch.Tensor, int]:
    """Return the sum over `axis` and components, and how many elements went into it."""
    totals, count = [], 0
    for component in components:
        dims = dimensions(component, axis)
        totals.append(_sum(component, dims))
        count += torch.Size([component.shape[dim] for dim in dims]).numel()
    total = combine(ReduceOp.SUM, totals)
    assert isinstance(total, torch.Tensor)
    return total, count


def _sum(tensor: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    # Without dimensions torch.sum would reduce them all.
    if not dims:
        return tensor
    dtype = None if tensor.dtype is torch.bool else tensor.dtype
    return tensor.sum(dims, dtype=dtype)


def dimensions(tensor: torch.Tensor, axis: Axis) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else axis
    if not isinstance(axes, tuple | list):
        raise InvalidTypeError(
            f"`axis` must be an integer, tuple or list of integers, not {axis!r}"
        )
    rank = tensor.dim()
    for dim in axes:
        if not -rank <= dim < rank:
            raise InvalidArgumentError(
                f"`axis` {dim} is out of range for a value of rank {rank}"
            )
    return tuple(dim % rank for dim in axes)


def place(nest: Any, destinations: Any) -> Any:
    """Copy reduced values to where `destinations` is.

    Args:
        nest: Tensors, `IndexedSlices`, and plain values, which stay as they are.
        destinations: A device; or a tensor, meaning its device; or a variable or
            distributed values, meaning the devices of all components; or the
            nest that was reduced, meaning for each leaf its own.

    Returns:
        The values there; for several components a `Mirrored` of distinct copies.
    """
    if opened(destinations) is None:
        return map_leaves(lambda leaf: _place_leaf(leaf, destinations), nest)
    return map_leaves(_place_leaf, nest, destinations)


def _place_leaf(value: Any, destination: Any) -> Any:
    if not isinstance(value, torch.Tensor | IndexedSlices):
        return value
    places = components(destination)
    if places is not None:
        first, *others = places
        # A replica may write its copy in place, which must not show elsewhere.
        copies = [_copied(_place_leaf(value, other)) for other in others]
        first = _place_leaf(value, first)
        return Mirrored([first, *copies]) if copies else first
    if isinstance(destination, str | torch.device):
        return value.to(_devices.torch_device(destination))
    device = getattr(destination, "device", None)
    return value if device is None else value.to(device)


def _copied(value: torch.Tensor | IndexedSlices) -> torch.Tensor | IndexedSlices:
    if isinstance(value, IndexedSlices):
        return IndexedSlices(
            value.values.clone(), value.indices.clone(), value.dense_shape
        )
    return value.clone()
