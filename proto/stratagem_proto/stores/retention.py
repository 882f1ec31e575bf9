"""Which checkpoints stay when a new one is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence


def kept_of(newest: Sequence[str], keep: int, bases: Callable[[str], Collection[str]]) -> set[str]:
    """Return which checkpoints stay.

    Args:
        newest: The names of all, the newest first.
        keep: How many stay whatever they are.
        bases: Returns the names of those that have what a checkpoint lacks.
    """
    kept = set(newest[:keep])
    return kept.union(*map(bases, kept))
