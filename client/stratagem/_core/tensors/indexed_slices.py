"""Values for some rows of a tensor, and the numbers of rows that programs ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stratagem._core.tensors.operators import TensorStandIn
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


class IndexedSlices:
    """Rows of a larger tensor, for instance the gradient of an embedding.

    Attributes:
        values: Tensor of shape `[n, ...]`; row `i` belongs to `indices[i]`. Of a variable or
            another value with several components it is what a read gives where the slices are made.
        indices: Integer tensor of shape `[n]`; repeated indices add up. With more dimensions, as
            `batch_scatter_update` takes it, `values` begins with the same.
        dense_shape: Shape of the whole tensor, or None where it is not known.

    Raises:
        InvalidArgumentError: The shapes do not fit together.
        InvalidTypeError: The indices are no integers, or something is no tensor.
    """

    def __init__(
        self, values: torch.Tensor, indices: torch.Tensor, dense_shape: Sequence[int] | None = None
    ) -> None:
        if isinstance(values, TensorStandIn):
            values = values._operand()
        if isinstance(indices, TensorStandIn):
            indices = indices._operand()
        for name, given in (("values", values), ("indices", indices)):
            if not isinstance(given, torch.Tensor):
                raise InvalidTypeError(
                    f"The {name} of IndexedSlices are a tensor, not {type(given).__name__}; "
                    "convert them with torch.as_tensor()"
                )
        if not indices.dim() or values.shape[: indices.dim()] != indices.shape:
            raise InvalidArgumentError(
                "IndexedSlices need one row of values for each index, but values have "
                f"shape {tuple(values.shape)} and indices {tuple(indices.shape)}"
            )
        if indices.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
            raise InvalidTypeError(
                f"The indices of IndexedSlices are integers, not {indices.dtype}; "
                "convert them with .to(torch.int64)"
            )
        self.values = values
        self.indices = indices
        self.dense_shape: torch.Size | None = (
            None if dense_shape is None else torch.Size(dense_shape)
        )

    @classmethod
    def from_sparse(cls, tensor: torch.Tensor) -> IndexedSlices:
        """Return the rows of a `torch.sparse_coo` tensor with one sparse dimension.

        Raises:
            InvalidArgumentError: The tensor is of another kind.
        """
        if tensor.layout is not torch.sparse_coo or tensor.sparse_dim() != 1:
            raise InvalidArgumentError(
                "Only a torch.sparse_coo tensor with exactly one sparse dimension has "
                f"rows; this one has layout {tensor.layout}"
            )
        return cls(tensor._values(), tensor._indices()[0], tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values live."""
        return self.values.device

    @property
    def flat(self) -> IndexedSlices:
        """The same with indices of one dimension."""
        if self.indices.dim() == 1:
            return self
        values = self.values.flatten(0, self.indices.dim() - 1)
        return IndexedSlices(values, self.indices.flatten(), self.dense_shape)

    def to(self, device: torch.device) -> IndexedSlices:
        """Return these rows on `device`."""
        values, indices = self.values.to(device), self.indices.to(device)
        return IndexedSlices(values, indices, self.dense_shape)

    def to_dense(self) -> torch.Tensor:
        """Return the whole tensor, zero where there is no row.

        Raises:
            InvalidArgumentError: `dense_shape` is not known.
        """
        if self.dense_shape is None:
            raise InvalidArgumentError(
                "IndexedSlices without dense_shape cannot become a dense tensor; pass "
                "dense_shape when you make them"
            )
        dense = self.values.new_zeros(self.dense_shape)
        return dense.index_add_(0, self.flat.indices, self.flat.values)

    def __repr__(self) -> str:
        shape = None if self.dense_shape is None else tuple(self.dense_shape)
        return (
            f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={shape})"
        )


_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def require_integers(rows: Any, owner: str) -> None:
    """Check that rows or keys are whole numbers; others would be rounded.

    Args:
        rows: What was asked for.
        owner: The name of the variable or table.

    Raises:
        InvalidTypeError: They are no tensor of integers.
    """
    kind = rows.dtype if isinstance(rows, torch.Tensor) else type(rows).__name__
    if kind not in _INTEGERS:
        raise InvalidTypeError(
            f"{owner!r} is looked up by a tensor of integers, not by {kind}; pass "
            "torch.as_tensor(..., dtype=torch.int64)"
        )


def integers(given: Any, owner: str) -> torch.Tensor:
    """Return what a program asks for, of any shape, as an int64 tensor.

    Raises:
        InvalidTypeError: They are no integers.
    """
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{owner!r} is looked up by integers, not by {given!r}, of which no tensor can be made "
            f"({str(error).splitlines()[0]})"
        ) from error
    # An empty list becomes a tensor of floats.
    if found.numel():
        require_integers(found, owner)
    return found.to(torch.int64)


def row_numbers(given: Any, owner: str, total: int) -> torch.Tensor:
    """Return rows that a program asks for as a tensor.

    Args:
        given: Integers, of any shape.
        owner: The name of the variable.
        total: How many rows it has.

    Raises:
        InvalidTypeError: They are no integers.
        InvalidArgumentError: There is no such row.
    """
    rows = integers(given, owner)
    if not rows.numel():
        return rows
    first, last = int(rows.min()), int(rows.max())
    if not 0 <= first <= last < total:
        raise InvalidArgumentError(
            f"rows {first} to {last} of {owner!r} are asked for, but it has the rows 0 "
            f"to {total - 1}"
        )
    return rows
