"""A dataset of the rows of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stratagem._core.nests import leaves, map_leaves, opened
from stratagem_proto.errors import InvalidArgumentError


class NumpyDataset(Dataset[Any]):
    """The rows of a nest of arrays, which is copied.

    Batch it by a `DataLoader`, then distribute that; distributed as it is, each replica gets one
    row a step.

    Args:
        numpy_input: A nest of arrays of shape [rows, ...]. A list counts as one array that has its
            items as rows, not as a structure.

    Raises:
        InvalidArgumentError: The arrays differ in their numbers of rows, or have none.

    Spec: INP-50.
    """

    def __init__(self, numpy_input: Any) -> None:
        self._columns = _columns(numpy_input)
        sizes = sorted({len(column) for column in leaves(self._columns)})
        if len(sizes) != 1:
            raise InvalidArgumentError(
                f"The arrays of a dataset must have the same number of rows, not {sizes}"
            )
        self._size = sizes[0]

    def batched(self, size: int) -> DataLoader[Any]:
        """Return batches of `size` rows, in their order; the last may be smaller."""
        return DataLoader(self, size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        """Return row `index` of each array, in the structure of the input."""
        if not -self._size <= index < self._size:
            raise IndexError(f"row {index} of a dataset that has {self._size}")
        return map_leaves(lambda column: column[index], self._columns)


def _columns(nest: Any) -> Any:
    node = None if isinstance(nest, list) else opened(nest)
    if node is not None:
        return node.rebuild([_columns(child) for child in node.children])
    array = np.array(nest)
    if not array.ndim:
        raise InvalidArgumentError(
            f"{nest!r} has no rows; a dataset is made of arrays of shape [rows, ...]"
        )
    return array if array.dtype.kind in "USO" else torch.from_numpy(array)
