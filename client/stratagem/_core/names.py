"""Unique names for variables."""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter
from collections.abc import Collection
from functools import partial
from weakref import ref

from stratagem._core.namesakes import REMEDY, Origin, ambiguous, listed
from stratagem._core.program_frames import stacklevel_of_program


class _Collection:
    """Whether this thread collects garbage at the moment.

    Python drops what is raised in one of `gc.callbacks`, and a signal that came during a collection
    has its handler called by the first line of Python after it. So the callbacks are methods that
    are written in C: with one of our own, a Ctrl-C that came then would be lost.
    """

    def __init__(self) -> None:
        # The phase that was last is the last one here, with what all callbacks of it are given.
        self._phases: dict[str, object] = {"start": None, "stop": None}
        self._here = threading.local()
        self.callbacks = (
            self._phases.pop,
            self._phases.setdefault,
            self._here.__setattr__,
        )

    @property
    def is_here(self) -> bool:
        phase, info = list(self._phases.items())[-1]
        return phase == "start" and getattr(self._here, "start", None) is info


_COLLECTION = _Collection()
gc.callbacks.extend(_COLLECTION.callbacks)


class UniqueNames:
    """The names of the living objects of one strategy.

    `choose` a name, make the object, then `record` both. Whether a name is free must not depend on
    when cycles are collected: all workers have to come to the same names. So an object that its
    last reference frees gives its name back at once, and one that a collection frees does at a
    clash after a `release`, when garbage is collected on every worker.

    A collection takes 0.1 s. After two that were of no use one after the other, the next ones leave
    out more and more clashes.

    A name that got a number depends on the order in which the program makes things, so what else is
    known of them is kept as their `Origin`.

    Attributes:
        warns: Whether it warns of names that only the order tells apart when they are given, since
            other programs have to agree on them.
    """

    def __init__(self) -> None:
        self._owners: dict[str, ref[object]] = {}
        self._taken: set[str] = set()
        # What was wanted where a name has a number, by the name.
        self._wanted: dict[str, str] = {}
        self._origins: dict[str, Origin] = {}
        self._batch = 0
        self._phase = 0
        self._is_used = False
        self.warns = False
        self._has_warned = False
        self._has_numbered = False
        # By the name that was wanted: suffixes up to this one are taken.
        self._suffixes: Counter[str] = Counter()
        self._may_release = False
        self._useless = 0
        self._clashes = 0

    def __deepcopy__(self, memo: dict[int, object]) -> UniqueNames:
        """Return names that are taken by the same objects."""
        copied = UniqueNames()
        for name, owner in list(self._owners.items()):
            if (living := owner()) is not None:
                copied.record(name, living)
        copied._taken |= self._taken
        copied._wanted, copied._origins = {**self._wanted}, {**self._origins}
        copied._batch, copied._phase, copied._is_used = self._batch, self._phase, self._is_used
        copied.warns = self.warns
        return copied

    def choose(self, wanted: str) -> str:
        """Return `wanted`, or its first free form among `wanted_1`, `wanted_2`, ..."""
        if wanted not in self._taken:
            self._wanted.pop(wanted, None)
            return wanted
        if self._may_release:
            self._may_release = False
            self._collect(wanted)
            return self.choose(wanted)
        while (name := f"{wanted}_{self._suffixes[wanted] + 1}") in self._taken:
            self._suffixes[wanted] += 1
        self._wanted[name] = wanted
        return name

    def record(self, name: str, owner: object) -> None:
        """Note that `owner` has `name`."""
        self._taken.add(name)
        self._owners[name] = ref(owner, partial(self._gone, name))

    def owner(self, name: str) -> object | None:
        """Return the living object that has a name; None if there is none."""
        found = self._owners.get(name)
        return None if found is None else found()

    def forget(self, name: str) -> None:
        """Let a name be chosen again, though its owner may live."""
        self._owners.pop(name, None)
        self._free(name)

    def release(self) -> None:
        """Let names of objects that are gone be chosen again if need be."""
        self._may_release = True

    # Origins.

    def describe(self, name: str, form: str, structure: str = "", label: str = "") -> None:
        """Note the origin of what is made under a name that was chosen; see `Origin`."""
        self._phase += self._is_used
        self._is_used = False
        wanted = self._wanted.get(name, name)
        self._has_numbered |= wanted != name
        origin = Origin(wanted, form, structure, label, self._batch, self._phase)
        self._origins[name] = origin

    def end_batch(self) -> None:
        """Note that what was described since the last call was made at once."""
        self._batch += 1
        if self.warns and self._has_numbered:
            self.warn_of_order()
        self._has_numbered = False

    def used(self) -> None:
        """Note that the program uses what it has made."""
        self._is_used = bool(self._origins)

    def origin(self, name: str) -> Origin | None:
        """Return the origin of what has a name; None if it is unknown."""
        return self._origins.get(name)

    @property
    def phase(self) -> int:
        """The `Origin.phase` of what was made last."""
        return self._phase

    def warn_of_order(self) -> None:
        """Warn once if only the order of making tells some of those that live apart."""
        if self._has_warned or not self._wanted:
            return
        living = {name: one for name, one in self._origins.items() if name in self._taken}
        self.warn_of(ambiguous(living))

    def warn_of(self, names: Collection[str]) -> None:
        """Warn, unless it has warned before, that only their order tells some apart; if any."""
        if names and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"only the order in which this program makes {listed(names)} tells them apart: "
                "another program that attaches to them, or restores a checkpoint of them, has to "
                f"make all of them in the same order. Better {REMEDY}",
                stacklevel=stacklevel_of_program(),
            )

    def _gone(self, name: str, owner: ref[object]) -> None:
        if self._owners.get(name) is not owner:
            return
        del self._owners[name]
        if not _COLLECTION.is_here:
            self._free(name)

    def _free(self, name: str) -> None:
        self._taken.discard(name)
        self._origins.pop(name, None)
        self._wanted.pop(name, None)
        self._suffixes.clear()

    def _collect(self, wanted: str) -> None:
        self._clashes += 1
        if self._clashes <= 2**self._useless // 8:
            return
        gc.collect()
        for name in self._taken - self._owners.keys():
            self._free(name)
        self._useless = self._useless + 1 if wanted in self._taken else 0
        self._clashes = 0

    def owners(self) -> list[object]:
        """Return the living objects, in the order of their recording."""
        found = [owner() for owner in list(self._owners.values())]
        return [owner for owner in found if owner is not None]
