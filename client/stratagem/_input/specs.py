"""What elements look like, without their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stratagem._input.rounds import Round
from stratagem._replicas.nests import map_leaves
from stratagem_proto.errors import OutOfRangeError


@dataclass(frozen=True)
class LeafSpec:
    """The form of a leaf.

    Attributes:
        kind: Its class.
        shape: Its shape, None if it has none; the first dimension of a tensor is
            None, as batches may be short.
        dtype: Its dtype, None if it has none.
    """

    kind: type
    shape: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class PerReplicaSpec:
    """The form of a `PerReplica`.

    Attributes:
        specs: The form of each component.
    """

    specs: Sequence[Any]


def spec_of(rounds: Iterator[Round]) -> Any:
    """Return the nest of specs of the first round.

    Raises:
        OutOfRangeError: There is no round. Spec: INP-45.
    """
    first = next(rounds, None)
    if first is None:
        raise OutOfRangeError(
            "The dataset has no elements, so there is no element_spec to tell"
        )
    parts = [map_leaves(_leaf_spec, part) for part in first.parts]
    if len(parts) == 1:
        return parts[0]
    return map_leaves(lambda *specs: PerReplicaSpec(specs), *parts)


def _leaf_spec(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return LeafSpec(type(leaf))
    shape = (None, *leaf.shape[1:]) if leaf.dim() else ()
    return LeafSpec(torch.Tensor, shape, leaf.dtype)
