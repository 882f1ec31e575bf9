"""Versions of values, each of which one value of one variable ever has.

The highest bits name a run of a server that has begun with a checkpoint. What the run before it
applied since had versions, too, which clients may still hold; they say nothing about the values of
this one.
"""

from __future__ import annotations

import secrets

# No variable is changed as often as this in one run.
_COUNT_BITS = 40

_RUN_BITS = 24


def first_of_another_run() -> int:
    """Return the first version that a run gives which begins with a checkpoint."""
    run = 1 + secrets.randbelow((1 << _RUN_BITS) - 1)
    return (run << _COUNT_BITS) + 1


def is_newer(version: int, than: int) -> bool:
    """Return whether a version takes the place of one that somebody has.

    Args:
        version: What a server gives now.
        than: What they have; that of another run is older, whatever its number.
    """
    return version > than or version >> _COUNT_BITS != than >> _COUNT_BITS
