"""Where variables live, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stratagem_proto.tensors import decode_dtype, nbytes_of
from stratagem_proto.v1.variable_pb2 import VariableInfo


@dataclass(frozen=True)
class VariablePlacement:
    """Where one variable lives.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: The type of its elements.
        server: The task that hosts it, as in "/job:ps/task:0".
        nbytes: Size of its value in bytes.
        slot_of: For the state of an optimizer, the name of the variable that it
            belongs to; else "".
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    server: str
    nbytes: int
    slot_of: str


def placements(
    listing: Mapping[int, Sequence[VariableInfo]],
) -> list[VariablePlacement]:
    """Return an entry for each variable of each server."""
    return [
        VariablePlacement(
            info.spec.name,
            tuple(info.spec.tensor.shape),
            decode_dtype(info.spec.tensor.dtype),
            f"/job:ps/task:{server}",
            nbytes_of(info.spec.tensor),
            info.spec.slot_of,
        )
        for server, infos in sorted(listing.items())
        for info in infos
    ]
