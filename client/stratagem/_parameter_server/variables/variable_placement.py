"""Where variables live, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of


@dataclass(frozen=True)
class VariablePlacement:
    """Where one variable lives.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: The type of its elements.
        server: The task that hosts it, as in "/job:ps/task:0".
        nbytes: Size of its value in bytes.
        slot_of: For the state of an optimizer, the name of the variable that it belongs to; else
            "".
    """

    __module__ = "stratagem"

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    server: str
    nbytes: int
    slot_of: str = ""


def placements(listing: Mapping[str, Sequence[VariableSpec]]) -> list[VariablePlacement]:
    """Return an entry for each variable of each task, in their order."""
    return [
        VariablePlacement(
            spec.name,
            tuple(spec.tensor.shape),
            decode_dtype(spec.tensor.dtype),
            task,
            nbytes_of(spec.tensor),
            spec.slot_of,
        )
        for task, specs in listing.items()
        for spec in specs
    ]
