"""Sums, means and concatenations over replicas, as pure functions of their values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import torch

from stratagem._core.enums import ReduceOp
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.tensors.nests import map_leaves
from stratagem._core.tensors.operators import TensorStandIn
from stratagem._core.values.placement import at_destinations, components, place
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

Axis = int | tuple[int, ...] | list[int]


def reduce_nest(op: ReduceOp, nest: Any, destinations: Any, replicas: int) -> Any:
    """Reduce each leaf of `nest` over its replicas, and copy it to the destinations.

    Args:
        op: The reduction.
        nest: Distributed values; a plain value counts as equal on all replicas, so that its mean is
            itself, as it is and where it is.
        destinations: As for `place`.
        replicas: The number of replicas.

    Raises:
        InvalidArgumentError: A plain value is to be summed, or the components of a value differ in
            shape or dtype. Spec: RED-5 to RED-7, RED-15 to RED-23.
    """

    def reduced(leaf: Any, destination: Any) -> Any:
        values = components(leaf)
        if values is not None:
            return place(combine(op, values), destination)
        if op is ReduceOp.MEAN:
            return leaf
        if replicas > 1:
            raise sum_of_plain(leaf)
        return place(leaf, destination)

    return at_destinations(reduced, nest, destinations)


def sum_of_plain(leaf: Any) -> InvalidArgumentError:
    """Return the error for adding up what is the same on several replicas."""
    return InvalidArgumentError(
        f"A non-DistributedValues value {leaf!r} cannot be reduced with the given "
        f"reduce op {ReduceOp.SUM}: whether its copies on all replicas are meant is "
        "unclear; use ReduceOp.MEAN or multiply it yourself. If each replica has returned it, have "
        "them return tensors: equal small integers of Python are one object"
    )


def combine(op: ReduceOp, values: Sequence[Any]) -> torch.Tensor | IndexedSlices:
    """Add `values` in their order, starting from the first; MEAN also divides.

    Rows (`IndexedSlices`) are concatenated, so that they stay sparse.

    Raises:
        InvalidArgumentError: The values differ in shape or dtype. Spec: RED-6.
    """
    if all(isinstance(value, IndexedSlices) for value in values):
        return _combine_rows(op, values)
    tensors = addends(op, values)
    home = tensors[0].device
    total = fold(torch.add, (tensor.to(home) for tensor in tensors))
    return finished(op, total, len(tensors))


def addends(op: ReduceOp, values: Sequence[Any]) -> list[torch.Tensor]:
    """Return values of equal shape and dtype as they are to be added up.

    Raises:
        InvalidArgumentError: The values differ in shape or dtype. Spec: RED-6.
    """
    tensors = [dense(value) for value in values]
    require_equal_dtypes(tensors)
    _require_equal_shapes(tensors)
    return [addend(op, tensor) for tensor in tensors]


def addend(op: ReduceOp, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype in which it is to be added up.

    Integers of a mean are added as what it is, float64: the sum of a few might not fit their own
    dtype. Of flags those that are set are counted, as torch's `sum` does.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor
    if op is ReduceOp.MEAN:
        return tensor.to(torch.float64)
    return tensor.to(torch.int64) if tensor.dtype is torch.bool else tensor


def _combine_rows(op: ReduceOp, parts: Sequence[IndexedSlices]) -> IndexedSlices:
    home = parts[0].device
    flat = [part.flat.to(home) for part in parts]
    rows = torch.cat([part.values for part in flat])
    indices = torch.cat([part.indices for part in flat])
    return IndexedSlices(finished(op, rows, len(parts)), indices, parts[0].dense_shape)


def dense(value: Any) -> torch.Tensor:
    """Return a component as a tensor.

    Raises:
        InvalidArgumentError: It is nothing that can be reduced.
    """
    if isinstance(value, IndexedSlices):
        return value.to_dense()
    if isinstance(value, TensorStandIn):
        value = value._operand()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"Only tensors and numbers can be reduced or gathered, not {value!r}; "
            "return something else from the replica function, or leave it out"
        ) from error


def _require_equal_shapes(tensors: Sequence[torch.Tensor]) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidArgumentError(
            f"Cannot reduce values whose shapes differ between replicas: {shapes}; "
            "pass `axis` to reduce the differing dimension as well"
        )


def require_equal_dtypes(tensors: Sequence[torch.Tensor]) -> None:
    """Check that components may be brought together.

    Raises:
        InvalidArgumentError: Their dtypes differ.
    """
    dtypes = [tensor.dtype for tensor in tensors]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise InvalidArgumentError(
            f"Cannot bring values together whose dtypes differ between replicas: "
            f"{dtypes}; convert them with .to() in the replica function"
        )


def finished(op: ReduceOp, total: torch.Tensor, count: int) -> torch.Tensor:
    """Return a sum as it is, or made a mean; that of integers is float64.

    Spec: RED-7.
    """
    if op is ReduceOp.SUM:
        return total
    if not (total.is_floating_point() or total.is_complex()):
        total = total.to(torch.float64)
    return total / count


def reduce_axes(op: ReduceOp, nest: Any, axis: Axis, replicas: int) -> Any:
    """Reduce each leaf over `axis` within its components, then over replicas.

    A MEAN weights each component by the number of elements it reduces.

    Raises:
        InvalidArgumentError: `axis` does not exist.
        InvalidTypeError: `axis` is neither an integer nor several. Spec: RED-8 to RED-14, RED-19.
    """

    def reduced(leaf: Any) -> torch.Tensor:
        values = components(leaf) or (leaf,) * replicas
        return _reduce_components(op, [dense(value) for value in values], axis)

    return map_leaves(reduced, nest)


def _reduce_components(
    op: ReduceOp, components: Sequence[torch.Tensor], axis: Axis
) -> torch.Tensor:
    total, count = axis_sum(op, components, axis)
    return finished(op, total, count)


def axis_sum(
    op: ReduceOp, components: Sequence[torch.Tensor], axis: Axis
) -> tuple[torch.Tensor, int]:
    """Return the sum over `axis` and components, and how many elements went into it."""
    totals, count = [], 0
    for component in components:
        dims = dimensions(component, axis)
        totals.append(_sum(addend(op, component), dims))
        count += torch.Size([component.shape[dim] for dim in dims]).numel()
    total = combine(ReduceOp.SUM, totals)
    assert isinstance(total, torch.Tensor)
    return total, count


def _sum(tensor: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    # Without dimensions torch.sum would reduce them all.
    return tensor.sum(dims, dtype=tensor.dtype) if dims else tensor


def dimensions(tensor: torch.Tensor, axis: Axis) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else axis
    if not isinstance(axes, tuple | list):
        raise InvalidTypeError(
            f"`axis` must be an integer, tuple or list of integers, not {axis!r}"
        )
    rank = tensor.dim()
    for dim in axes:
        if not -rank <= dim < rank:
            raise InvalidArgumentError(f"`axis` {dim} is out of range for a value of rank {rank}")
    return tuple(dim % rank for dim in axes)


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
