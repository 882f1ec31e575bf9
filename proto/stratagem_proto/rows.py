"""Rows of tensors, by their indices."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

# numpy sorts so many numbers much faster than torch. Of fewer, torch has less to do before it
# begins, and of more it has a faster way.
_SORTED_BY_NUMPY = range(128, 1 << 15)

# Of fewer bytes, torch is as fast.
_LEAST_BYTES = 8 << 10

# The mode of torch's bags that adds.
_ADDED = 0

# numpy has no longer elements.
_MOST_ROW_BYTES = 2**31 - 1

_Integers: TypeAlias = npt.NDArray[np.integer[Any]]


class _Sorted(NamedTuple):
    """Indices in ascending order, equal ones as they came.

    Attributes:
        indices: They, of their type.
        order: Where each was.
        is_first: Whether it is another one than that before it.
    """

    indices: _Integers
    order: npt.NDArray[np.int64]
    is_first: npt.NDArray[np.bool_]

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """Of each, how many others are before it."""
        places: npt.NDArray[np.int64] = self.is_first.cumsum(dtype=np.int64)
        places -= 1
        return places


def distinct(indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices that there are, and where each element is among them.

    Args:
        indices: Whole numbers, of any type and shape.

    Returns:
        An ascending vector without repetitions, and places in it, int64 of the shape of `indices`;
        both on its device.
    """
    if (ascending := _sorted(indices)) is None:
        found, places = torch.unique(indices, return_inverse=True)
        return found, places
    at = np.empty_like(ascending.order)
    at[ascending.order] = ascending.places
    unique = ascending.indices[ascending.is_first]
    return torch.from_numpy(unique), torch.from_numpy(at).view(indices.shape)


def ascending_order(indices: torch.Tensor) -> torch.Tensor:
    """As `torch.argsort(indices, stable=True)`, of a vector of whole numbers."""
    if (ascending := _sorted(indices)) is None:
        return torch.argsort(indices, stable=True)
    return torch.from_numpy(ascending.order)


def summed(indices: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices that there are, and the ordered sum of each one's values.

    Args:
        indices: Vector of whole numbers, of any type.
        values: A row for each of them, on the same device.

    Returns:
        An ascending vector without repetitions, and a row for each of its elements.
    """
    if not _fit_bags(values) or (ascending := _sorted(indices)) is None:
        found, places = distinct(indices)
        sums = values.new_zeros(len(found), *values.shape[1:])
        return found, sums.index_add_(0, places, values)
    # Bags take half the time of `index_add_` by places.
    (firsts,) = ascending.is_first.nonzero()
    order, begins = map(torch.from_numpy, (ascending.order, firsts))
    elements = values.flatten(1)
    bags = torch.embedding_bag(elements, order, begins, False, _ADDED, False)[0]
    sums = bags.view(len(firsts), *values.shape[1:])
    return torch.from_numpy(ascending.indices[firsts]), sums


def _fit_bags(values: torch.Tensor) -> bool:
    """Return whether bags come to the same bytes as `index_add_`, in less time."""
    is_fast = values.is_cpu and values.dtype == torch.float32
    return is_fast and values.dim() > 1 and values.numel() > 0


def _sorted(indices: torch.Tensor) -> _Sorted | None:
    """Return indices in order; None if torch is to look at them.

    Each is sorted in one number with its place: to sort places by indices takes numpy three times
    as long.
    """
    is_integer = not (indices.is_floating_point() or indices.is_complex())
    if not (indices.is_cpu and is_integer and indices.numel() in _SORTED_BY_NUMPY):
        return None
    each = indices.flatten().numpy()
    bits, keys = len(each).bit_length(), each.astype(np.int64)
    # Negative ones are larger than all others here.
    largest = int(np.maximum.reduce(keys.view(np.uint64)))
    if largest.bit_length() + bits > 63:
        return None
    keys <<= bits
    keys |= np.arange(len(each))
    keys.sort()
    order = keys & ((1 << bits) - 1)
    keys >>= bits
    is_first = np.empty(len(each), np.bool_)
    is_first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return _Sorted(keys.astype(each.dtype, copy=False), order, is_first)


def are_ascending(rows: torch.Tensor, count: int) -> bool:
    """Return whether indices are in order, each once, and of the first so many rows.

    Args:
        rows: int64 vector, on the CPU.
        count: The rows that there are.
    """
    each = rows.numpy()
    if not len(each):
        return True
    return each[0] >= 0 and each[-1] < count and bool((each[1:] > each[:-1]).all())


def put(into: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Write rows of a CPU tensor.

    Args:
        into: Of one dimension or more.
        rows: int64 vector of indices that there are, without repetitions.
        values: What to write there, of the same type.
    """
    if values.nbytes < _LEAST_BYTES or not are_whole(into):
        into.index_copy_(0, rows, values)
    else:
        # torch would go through the elements of each row.
        _whole(into).put(rows.numpy(), _whole(values.contiguous()))


def are_whole(tensor: torch.Tensor) -> bool:
    """Return whether the rows of a CPU tensor can be moved as wholes."""
    if not tensor.numel() or not tensor.is_contiguous() or tensor.is_complex():
        return False
    return tensor.nbytes // tensor.shape[0] <= _MOST_ROW_BYTES


class Taken(NamedTuple):
    """Copies of rows.

    Attributes:
        rows: Which.
        elements: Theirs, as a vector, which may be changed.
        wholes: The same memory, row by row.
    """

    rows: npt.NDArray[np.int64]
    elements: torch.Tensor
    wholes: npt.NDArray[np.void]


class WholeRows:
    """The rows of a tensor, moved as wholes.

    Args:
        tensor: On the CPU, of which `are_whole` holds.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._rows, self._dtype = _whole(tensor), tensor.dtype

    def take(self, rows: npt.NDArray[np.int64]) -> Taken:
        """Copy rows.

        Args:
            rows: Vector of indices that there are.
        """
        wholes = self._rows.take(rows)
        elements = torch.from_numpy(wholes.view(np.uint8)).view(self._dtype)
        return Taken(rows, elements, wholes)

    def put(self, taken: Taken) -> None:
        """Write rows that were taken, without repetitions, as they are now."""
        self._rows.put(taken.rows, taken.wholes)


def _whole(tensor: torch.Tensor) -> npt.NDArray[np.void]:
    """Return a vector whose elements are the rows, whatever type they are of."""
    row_bytes = tensor.nbytes // tensor.shape[0]
    # numpy does not know all types.
    whole = tensor.view(torch.uint8).numpy().reshape(-1).view((np.void, row_bytes))
    return whole
