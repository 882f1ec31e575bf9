"""In what two checkpoints differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from stratagem_proto.checkpoint.contents import wholes_of
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.whole import Whole
from stratagem_proto.tensors import as_bytes


@dataclass(frozen=True)
class Difference:
    """A variable that is not the same in both.

    Attributes:
        name: The variable.
        what: How it differs.
    """

    name: str
    what: str


def differences(first: Checkpoint, second: Checkpoint) -> Iterator[Difference]:
    """Yields the variables that differ, in the order of their names.

    Whether they are split, and into how many shards, makes no difference.

    Raises:
        DataLossError: A checkpoint is damaged.
    """
    ones, others = wholes_of(first.index), wholes_of(second.index)
    for name in sorted(ones.keys() | others.keys()):
        if name not in others:
            yield Difference(name, "only in the first")
        elif name not in ones:
            yield Difference(name, "only in the second")
        elif ones[name].tensor != others[name].tensor:
            change = f"{described(ones[name])} and {described(others[name])}"
            yield Difference(name, change)
        else:
            one, other = ones[name].read(first), others[name].read(second)
            if as_bytes(one) != as_bytes(other):
                yield Difference(name, _amount(one, other))


def described(whole: Whole) -> str:
    """The dtype and the shape of a variable for people."""
    return f"{str(whole.dtype).removeprefix('torch.')} {list(whole.shape)}"


def _amount(one: torch.Tensor, other: torch.Tensor) -> str:
    # As doubles: differences of unsigned numbers would wrap around.
    wide = torch.complex128 if one.is_complex() else torch.float64
    distance = (one.to(wide) - other.to(wide)).abs()
    count = int((one != other).sum())
    largest = float(distance.max())
    return f"{count} of {one.numel()} elements, by up to {largest:.6g}"
