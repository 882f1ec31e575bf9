"""Where a thread stands, as scenarios tell it."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.strategies import central, mirrored, one_device

MIX = "Mixing different tf.distribute.Strategy objects"


def strategies(lib: Library) -> list[Any]:
    """Return one strategy of each kind that has a scope."""
    return [one_device(lib), mirrored(lib), central(lib)]


def state(lib: Library) -> list[bool]:
    """Has a strategy, in cross-replica context, has a replica context."""
    names = lib.distribute
    return [
        names.has_strategy(),
        names.in_cross_replica_context(),
        names.get_replica_context() is not None,
    ]
