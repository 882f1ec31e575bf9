"""Telling whether values have changed, without pickling them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from stratagem._shipping.pickles import tensors
from stratagem_proto.wire.tensors import as_bytes

ATOMS = {bool, int, str, bytes, type(None)}
_MAPPINGS = {dict, OrderedDict}
_SEQUENCES = {list, tuple}

_DEEPEST = 4
_LARGEST_TENSOR = 1 << 16
"""Bytes; a larger one is pickled instead of being kept twice."""


def mark_of(value: Any, name: Callable[[Any], int | None], depth: int = 0) -> object:
    """Return what is equal for equal values only; None if there is no such thing.

    Args:
        value: The value.
        name: Returns the handle of an object, None for what travels by value.
        depth: How many containers it is in.
    """
    cls = type(value)
    if cls in ATOMS:
        return cls, value
    if cls is float:
        # Zeros of either sign are equal, but not the same.
        return cls, value.hex()
    if depth > _DEEPEST:
        return None  # maybe it contains itself
    if cls in _MAPPINGS:
        items = [mark_of(item, name, depth + 1) for item in value.items()]
        return None if None in items else (cls, *items)
    if cls in _SEQUENCES:
        items = [mark_of(item, name, depth + 1) for item in value]
        return None if None in items else (cls, *items)
    if tensors.is_plain(value):
        return _mark_of_tensor(value)
    handle = name(value)
    return None if handle is None else ("handle", handle)


def _mark_of_tensor(value: Any) -> object:
    if value.nbytes > _LARGEST_TENSOR:
        return None
    about = value.dtype, tuple(value.shape), value.requires_grad, value.device.type
    return *about, bytes(as_bytes(value))
