"""The leaves of a dataset's elements, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stratagem._core.tensors.nests import opened

_NUMERIC_KINDS = frozenset("biufc")


def as_tensors(element: Any) -> Any:
    """Return `element` with numbers and NumPy arrays as tensors.

    Strings have no tensors: a list of them, which is what collating makes of a batch,
    becomes a NumPy array of objects, so that it can be split by rows as well.

    Args:
        element: A nest of tensors, arrays, numbers, strings or other objects.

    Spec: INP-24, INP-41.
    """
    if _is_strings(element):
        return np.array(element, dtype=object)
    node = opened(element)
    if node is None:
        return _as_tensor(element)
    return node.rebuild([as_tensors(child) for child in node.children])


def _is_strings(value: Any) -> bool:
    if type(value) not in (list, tuple) or not value:
        return False
    return all(isinstance(item, str | bytes) for item in value)


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in _NUMERIC_KINDS:
        return torch.from_numpy(_shareable(leaf))
    if isinstance(leaf, np.number | np.bool_ | bool | int | float | complex):
        return torch.as_tensor(leaf)
    return leaf


def _shareable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array whose memory a tensor can use, if possible the same."""
    usable = array.flags.writeable and min(array.strides, default=0) >= 0
    return array if usable else array.copy()
