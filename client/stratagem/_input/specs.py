"""What elements look like, without their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from stratagem._core.distributed_values import PerReplica
from stratagem._core.nests import map_leaves


@dataclass(frozen=True)
class LeafSpec:
    """The form of a leaf.

    Attributes:
        kind: Its class.
        shape: Its shape, None if it has none; the first dimension of a tensor is None, as batches
            may be short, and so is a ragged one.
        dtype: Its dtype, None if it has none.
    """

    kind: type
    shape: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None

    def is_compatible_with(self, value: Any) -> bool:
        """Return whether a leaf has this form."""
        other = _leaf_spec(value)
        if (self.kind, self.dtype) != (other.kind, other.dtype):
            return False
        if self.shape is None or other.shape is None:
            return self.shape is other.shape
        sizes = zip(self.shape, other.shape, strict=False)
        same = all(size in (None, found) for size, found in sizes)
        return len(self.shape) == len(other.shape) and same


@dataclass(frozen=True)
class PerReplicaSpec:
    """The form of a `PerReplica`.

    Attributes:
        specs: The form of each component.
    """

    specs: Sequence[Any]

    def is_compatible_with(self, value: Any) -> bool:
        """Return whether a `PerReplica` has components of these forms. Spec: VAL-9."""
        if not isinstance(value, PerReplica) or len(value.values) != len(self.specs):
            return False
        pairs = zip(self.specs, value.values, strict=True)
        return all(spec.is_compatible_with(part) for spec, part in pairs)


def spec_of(parts: Sequence[Any]) -> Any:
    """Return the nest of specs of a round, given its parts."""
    specs = [element_spec(part) for part in parts]
    if len(specs) == 1:
        return specs[0]
    return map_leaves(lambda *each: PerReplicaSpec(each), *specs)


def element_spec(element: Any) -> Any:
    """Return the nest of specs of an element."""
    return map_leaves(_leaf_spec, element)


def exact_spec(value: Any) -> Any:
    """Return the nest of specs of one value: with its own sizes, also in the first dimension."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            return PerReplicaSpec([exact_spec(part) for part in leaf.values])
        spec = _leaf_spec(leaf)
        return replace(spec, shape=tuple(leaf.shape)) if spec.shape else spec

    return map_leaves(of, value)


def _leaf_spec(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return LeafSpec(type(leaf))
    inner = (size if isinstance(size, int) else None for size in leaf.shape[1:])
    return LeafSpec(torch.Tensor, (None, *inner) if leaf.dim() else (), leaf.dtype)
