"""Unique names for variables."""

from __future__ import annotations

import gc
from collections import Counter
from weakref import WeakValueDictionary


class UniqueNames:
    """The names of the living objects of one strategy.

    `choose` a name, make the object, then `record` both. Names of objects that are
    gone are free again at the first clash after each `release`.
    """

    def __init__(self) -> None:
        self._owners: WeakValueDictionary[str, object] = WeakValueDictionary()
        self._taken: set[str] = set()
        # By the name that was wanted: suffixes up to this one are taken.
        self._suffixes: Counter[str] = Counter()
        self._may_release = False

    def choose(self, wanted: str) -> str:
        """Return `wanted`, or its first free form among `wanted_1`, `wanted_2`, ..."""
        if wanted not in self._taken:
            return wanted
        if self._may_release:
            self._release()
            return self.choose(wanted)
        while (name := f"{wanted}_{self._suffixes[wanted] + 1}") in self._taken:
            self._suffixes[wanted] += 1
        return name

    def record(self, name: str, owner: object) -> None:
        """Note that `owner` has `name`."""
        self._taken.add(name)
        self._owners[name] = owner

    def release(self) -> None:
        """Let names of objects that are gone be chosen again if need be."""
        self._may_release = True

    def _release(self) -> None:
        # Whether a name is free must not depend on when cycles are collected: all
        # workers have to come to the same names. A collection takes 0.1 s, so there is
        # at most one for each scope.
        gc.collect()
        self._taken.intersection_update(self._owners.keys())
        self._suffixes.clear()
        self._may_release = False

    def owners(self) -> list[object]:
        """Return the living objects, in the order of their recording."""
        return list(self._owners.values())
