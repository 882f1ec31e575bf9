"""Copying values to the devices where they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stratagem._core import device_names
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.tensors.nests import map_leaves, opened
from stratagem._core.values.distributed_values import DistributedValues, Mirrored
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError


def components(leaf: Any) -> tuple[Any, ...] | None:
    """Return what each replica has of `leaf`; None if it is a plain value."""
    if isinstance(leaf, DistributedValues):
        return leaf.values
    copied = isinstance(leaf, Variable) and len(leaf.values) > 1
    return leaf.values if copied else None


def place(nest: Any, destinations: Any) -> Any:
    """Copy reduced values to where `destinations` is.

    Args:
        nest: Tensors, `IndexedSlices`, variables, meaning their values, and plain values, which
            stay as they are.
        destinations: A device; or a tensor, meaning its device; or a variable or distributed
            values, meaning the devices of all components; or the nest that was reduced, meaning for
            each leaf its own.

    Returns:
        The values there; for several components a `Mirrored` of distinct copies.

    Raises:
        InvalidArgumentError: There is something to copy, but no destination.
    """
    return at_destinations(_place_leaf, nest, destinations)


def at_destinations(fn: Callable[[Any, Any], Any], nest: Any, destinations: Any) -> Any:
    """Call `fn` with each leaf and where its result goes; return a nest of results."""
    if opened(destinations) is None:
        return map_leaves(lambda leaf: fn(leaf, destinations), nest)
    return map_leaves(fn, nest, destinations)


def refused_destinations(destinations: Any) -> InvalidArgumentError:
    """Return the error for what is no destination."""
    return InvalidArgumentError(
        "destinations must be one device, variable or value, not "
        f"{destinations!r}; to reduce to several pass a value that lives there"
    )


def _place_leaf(value: Any, destination: Any) -> Any:
    if isinstance(value, Variable):
        value = value.read_value()
    if not isinstance(value, torch.Tensor | IndexedSlices):
        return value
    if destination is None:
        raise refused_destinations(destination)
    places = components(destination)
    if places is not None:
        first, *others = places
        # A replica may write its copy in place, which must not show elsewhere.
        copies = [_copied(_place_leaf(value, other)) for other in others]
        first = _place_leaf(value, first)
        return Mirrored([first, *copies]) if copies else first
    if isinstance(destination, str | torch.device):
        return value.to(device_names.torch_device(destination))
    device = getattr(destination, "device", None)
    return value if device is None else value.to(device)


def _copied(value: torch.Tensor | IndexedSlices) -> torch.Tensor | IndexedSlices:
    if isinstance(value, IndexedSlices):
        return IndexedSlices(value.values.clone(), value.indices.clone(), value.dense_shape)
    return value.clone()
