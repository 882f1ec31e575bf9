"""Sorting, adding, copying and writing rows of tensors by their indices."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

# For fewer numbers, a call of torch costs less. From here on numpy takes a fifth of the time, up to
# millions of numbers.
_LEAST_SORTED_BY_NUMPY = 128

# For fewer bytes, torch is as fast.
_LEAST_BYTES = 8 << 10

# The mode of `torch.embedding_bag` that adds.
_ADDED = 0

# The size of the largest element of a numpy array.
_MOST_ROW_BYTES = 2**31 - 1

# Integers of the same size, for dtypes whose rows torch does not write.
_STORED_AS = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}

_Integers: TypeAlias = npt.NDArray[np.integer[Any]]


class Sorted(NamedTuple):
    """Integers in ascending order; equal ones keep their order.

    Attributes:
        distinct: The distinct integers.
        order: The position that each sorted integer had before.
        firsts: Where each distinct one begins among the sorted ones.
    """

    distinct: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]

    def places(self) -> npt.NDArray[np.int64]:
        """Return where each integer, in the order of before, is among the distinct ones."""
        counts = np.diff(self.firsts, append=len(self.order))
        found = np.empty_like(self.order)
        found[self.order] = np.repeat(np.arange(len(self.firsts)), counts)
        return found

    def part(self, span: slice) -> Sorted:
        """Return those of a span, if they stand there before and after sorting."""
        first, stop = np.searchsorted(self.firsts, (span.start, span.stop))
        return Sorted(
            self.distinct[first:stop],
            self.order[span] - span.start,
            self.firsts[first:stop] - span.start,
        )

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Return for each distinct integer the sum of its values, in their order.

        Args:
            values: One row for each integer, in the order of before, on the CPU.
        """
        if not _fit_bags(values):
            sums = values.new_zeros(len(self.firsts), *values.shape[1:])
            return sums.index_add_(0, torch.from_numpy(self.places()), values)
        # `embedding_bag` is faster than `index_add_`.
        order, begins = map(torch.from_numpy, (self.order, self.firsts))
        bags = torch.embedding_bag(values.flatten(1), order, begins, False, _ADDED, False)[0]
        return bags.view(len(self.firsts), *values.shape[1:])


def sorted_integers(each: _Integers) -> Sorted:
    """Sort a vector of integers.

    Each integer and its position are packed into one number where both fit, because numpy sorts
    numbers much faster than it sorts positions by their integers.
    """
    bits, keys = len(each).bit_length(), each.astype(np.int64)
    # Negative integers are larger than all others as unsigned numbers.
    largest = int(np.maximum.reduce(keys.view(np.uint64), initial=0))
    if largest.bit_length() + bits > 63:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    else:
        keys <<= bits
        keys |= np.arange(len(each))
        keys.sort()
        order = keys & ((1 << bits) - 1)
        keys >>= bits
    is_first = np.ones(len(each), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    (firsts,) = is_first.nonzero()
    return Sorted(keys[firsts], order, firsts)


def distinct(indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct indices, and the position of each index among them.

    Args:
        indices: Integers of any dtype and shape.

    Returns:
        An ascending vector of distinct indices, and int64 positions in it of the shape of
        `indices`; both on its device.
    """
    if not _is_for_numpy(indices):
        found, places = torch.unique(indices, return_inverse=True)
        return found, places
    ascending = sorted_integers(indices.flatten().numpy())
    places = torch.from_numpy(ascending.places()).view(indices.shape)
    return torch.from_numpy(ascending.distinct).to(indices.dtype), places


def ascending_order(indices: torch.Tensor) -> torch.Tensor:
    """Return `torch.argsort(indices, stable=True)` of a vector of integers."""
    if not _is_for_numpy(indices):
        return torch.argsort(indices, stable=True)
    return torch.from_numpy(sorted_integers(indices.numpy()).order)


def summed(indices: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct indices, and for each the sum of its values in their order.

    Args:
        indices: A vector of integers of any dtype.
        values: One row for each index, on the same device.

    Returns:
        An ascending vector of distinct indices, and one row for each of its elements.
    """
    if not (_fit_bags(values) and _is_for_numpy(indices)):
        found, places = distinct(indices)
        sums = values.new_zeros(len(found), *values.shape[1:])
        return found, sums.index_add_(0, places, values)
    ascending = sorted_integers(indices.numpy())
    return torch.from_numpy(ascending.distinct).to(indices.dtype), ascending.summed(values)


def _is_for_numpy(indices: torch.Tensor) -> bool:
    is_integer = not (indices.is_floating_point() or indices.is_complex())
    return indices.is_cpu and is_integer and indices.numel() >= _LEAST_SORTED_BY_NUMPY


def _fit_bags(values: torch.Tensor) -> bool:
    """Return whether `embedding_bag` gives the same bytes as `index_add_` in less time."""
    is_fast = values.is_cpu and values.dtype == torch.float32
    return is_fast and values.dim() > 1 and values.numel() > 0


def are_ascending(rows: torch.Tensor, count: int | None = None) -> bool:
    """Return whether indices are distinct, in ascending order, and within a number of rows.

    Args:
        rows: An int64 vector on the CPU.
        count: The number of rows; None if any number is an index.
    """
    each = rows.numpy()
    if not len(each):
        return True
    exist = count is None or (each[0] >= 0 and each[-1] < count)
    return bool(exist and (each[1:] > each[:-1]).all())


def set_rows(into: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Do as `into.index_copy_(0, rows, values)`, which torch lacks for some dtypes."""
    stored = _STORED_AS.get(into.dtype)
    if stored is None or values.dtype != into.dtype:
        return into.index_copy_(0, rows, values)
    into.view(stored).index_copy_(0, rows, values.view(stored))
    return into


def put(into: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Write rows of a CPU tensor.

    Args:
        into: The tensor, of one dimension or more.
        rows: An int64 vector of distinct indices of its rows.
        values: The rows to write, of the same dtype.
    """
    if values.nbytes < _LEAST_BYTES or not are_whole(into):
        set_rows(into, rows, values)
    else:
        # torch would copy the elements one by one.
        WholeRows(into).put(rows.numpy(), as_wholes(values.contiguous()))


def are_whole(tensor: torch.Tensor) -> bool:
    """Return whether the rows of a CPU tensor can be copied as single numpy elements."""
    if not tensor.numel() or not tensor.is_contiguous() or tensor.is_complex():
        return False
    return tensor.nbytes // tensor.shape[0] <= _MOST_ROW_BYTES


Wholes: TypeAlias = npt.NDArray[np.void]
"""Copies of rows, a numpy element for each."""


def as_elements(wholes: Wholes, dtype: torch.dtype) -> torch.Tensor:
    """Return the elements of copies of rows as one vector, in the same memory."""
    return torch.from_numpy(wholes.view(np.uint8)).view(dtype)


def as_wholes(tensor: torch.Tensor) -> Wholes:
    """Return the memory of a contiguous CPU tensor as a vector with one element per row."""
    row_bytes = tensor.nbytes // len(tensor) if len(tensor) else 1
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    # As bytes, since numpy does not have all dtypes of torch.
    wholes: Wholes = tensor.view(torch.uint8).numpy().reshape(-1).view((np.void, row_bytes))
    return wholes


class WholeRows:
    """The rows of a tensor, copied as single numpy elements.

    Args:
        tensor: A CPU tensor for which `are_whole` is true.

    Attributes:
        dtype: The dtype of a row as one element.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._rows = as_wholes(tensor)
        self.dtype: np.dtype[np.void] = self._rows.dtype

    def take(self, rows: npt.NDArray[np.int64], into: Wholes) -> None:
        """Copy rows.

        Args:
            rows: A vector of indices of its rows, which were checked: others are clipped.
            into: Gets the copies.
        """
        # With `mode="raise"` numpy would make a copy more.
        self._rows.take(rows, out=into, mode="clip")

    def put(self, rows: npt.NDArray[np.int64], wholes: Wholes) -> None:
        """Write copies of distinct rows back, with their present elements."""
        self._rows.put(rows, wholes)
