"""Towers, and what they have, for tests."""

from __future__ import annotations

from typing import Any

import torch

from stratagem import PerReplica, contrib

CPU = "/job:localhost/replica:0/task:0/device:CPU:"


def tower() -> contrib.TowerContext:
    """The context of the tower that is running."""
    found = contrib.get_tower_context()
    assert found is not None
    return found


def per_tower(*values: float) -> PerReplica:
    """A number for each tower."""
    return PerReplica([torch.tensor(value) for value in values])


def numbers(values: Any) -> list[Any]:
    """What tensors have, as Python numbers and lists."""
    return [value.tolist() for value in values]
