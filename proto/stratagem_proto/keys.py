"""Dividing the keys of a dynamic table between its parts."""

from __future__ import annotations

import torch

_MULTIPLIER = 0xBF58476D1CE4E5B9 - (1 << 64)


def part_of_keys(keys: torch.Tensor, parts: int) -> torch.Tensor:
    """Return the number of the part that has each key.

    Keys are mixed by one multiplication of the finaliser of SplitMix64 (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014), so that regular ones are spread
    evenly.

    Args:
        keys: An int64 vector.
        parts: The number of parts of the table.
    """
    mixed = (keys ^ (keys >> 30)) * _MULTIPLIER
    return torch.remainder(mixed ^ (mixed >> 27), parts)
