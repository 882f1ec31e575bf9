"""Unique names for variables."""

from __future__ import annotations

import gc
from weakref import WeakValueDictionary


class UniqueNames:
    """The names of the living objects of one strategy.

    `choose` a name, make the object, then `record` both; the name is free
    again once the object is gone.
    """

    def __init__(self) -> None:
        self._owners: WeakValueDictionary[str, object] = WeakValueDictionary()

    def choose(self, wanted: str) -> str:
        """Return `wanted`, or its first free form among `wanted_1`, `wanted_2`, ..."""
        if wanted in self._owners:
            # Whether a name is free must not depend on when cycles are collected:
            # all workers have to come to the same names.
            gc.collect()
        name, suffix = wanted, 0
        while name in self._owners:
            suffix += 1
            name = f"{wanted}_{suffix}"
        return name

    def record(self, name: str, owner: object) -> None:
        """Note that `owner` has `name`."""
        self._owners[name] = owner

    def owners(self) -> list[object]:
        """Return the living objects, in the order of their recording."""
        return list(self._owners.values())
