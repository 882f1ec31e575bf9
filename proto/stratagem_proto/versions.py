"""Versions of a variable's values; two values of a variable never have the same version.

The highest bits identify a run of a server that began with a checkpoint. The run before it may have
applied updates after that checkpoint, and clients may still have their versions, which say nothing
about the values of this run.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_VERSION = 1
"""The version of a variable as a program has created it; of one from a checkpoint it is another."""

# No variable is changed as often as this in one run.
_COUNT_BITS = 40

_RUN_BITS = 24


def first_of_another_run(random_bytes: Callable[[int], bytes]) -> int:
    """Return the first version of a run that begins with a checkpoint.

    Args:
        random_bytes: Returns as many random bytes as it is asked for.
    """
    run = 1 + int.from_bytes(random_bytes(8), "big") % ((1 << _RUN_BITS) - 1)
    return (run << _COUNT_BITS) + 1


def is_newer(version: int, than: int) -> bool:
    """Return whether a version replaces one that a client has.

    Args:
        version: The version that a server has now.
        than: The version that the client has. One of another run is older, whatever its number.
    """
    return version > than or version >> _COUNT_BITS != than >> _COUNT_BITS
