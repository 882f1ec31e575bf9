"""Nests of tensors that tests compare."""

from __future__ import annotations

from typing import Any

from torch import Tensor, equal


def same_bytes(ours: Any, theirs: Any) -> bool:
    """Whether two nests hold the same bytes."""
    if isinstance(theirs, Tensor):
        return ours.dtype == theirs.dtype and equal(ours, theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(
            same_bytes(ours[key], theirs[key]) for key in theirs
        )
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_bytes, ours, theirs))
    return bool(ours == theirs)
