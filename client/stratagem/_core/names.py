"""Unique names for variables, and telling those apart whose program gives them the same name.

Of several variables that were to be called "weight", the second one made is "weight_1". Another
program knows which one that is only if it makes all of them, in the same order. What else is known
of a variable, its origin, shows most programs that do not.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import CO_OPTIMIZED
from types import FrameType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import torch

_MOST_FRAMES = 8
_MOST_HELD = 10_000


def _frames() -> Iterator[tuple[int, FrameType]]:
    """Yield the frames of the program, innermost first, with their distance from the caller's."""
    frame, distance = sys._getframe(2), 1
    found = 0
    while frame is not None and found < _MOST_FRAMES:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("stratagem") and module != "contextlib":
            yield distance, frame
            found += 1
        frame, distance = frame.f_back, distance + 1  # type: ignore[assignment]


def stacklevel_of_program() -> int:
    """Return the `stacklevel` by which a warning of the caller's points at the program."""
    return next((distance for distance, _ in _frames()), 1)


def labels_of(objects: Collection[object]) -> dict[int, str]:
    """Return what the program calls objects, by their id.

    That is a key of a mapping, the name of an attribute of something that is no module itself, or
    the name of a variable of Python, in this order; or nothing. It tells `user, item = Tower(),
    Tower()` apart, also where these are made in the order of a set: `{name: Tower() for name in
    {"user", "item"}}`. The position in a list, which is the order of making, would tell nothing.
    """
    missing = {id(each) for each in objects}
    labels: dict[int, str] = {}
    for _, frame in _frames():
        if not missing:
            break
        values = dict(frame.f_locals)
        if frame.f_code.co_flags & CO_OPTIMIZED and sys.version_info < (3, 13):
            # Python would keep what this has looked at alive for as long as the frame lives.
            frame.f_locals.clear()
        inside = [held for value in values.values() for held in _held(value)]
        for mapping in [*inside, values]:
            for name, value in mapping.items():
                if id(value) in missing and isinstance(name, str) and name != "_":
                    labels[id(value)] = name.encode(errors="replace").decode()
                    missing.discard(id(value))
    return labels


def _held(value: Any) -> list[Mapping[Any, Any]]:
    """Return the mapping by which the value of a variable may name objects, if it has one."""
    if isinstance(value, ModuleType | type):
        return []
    held = value
    if not isinstance(value, dict):
        # What stands for something else may fail in any way.
        with suppress(Exception):
            held = vars(value)
    return [dict(held)] if isinstance(held, dict) and len(held) <= _MOST_HELD else []


_NUMBERED = re.compile(r"(.+)_\d+")
_MOST_SHOWN = 6

REMEDY = (
    "give each a name of its own in all programs: `with strategy.scope(name=...)` around each "
    "module, or `name=` of a Variable; or build the modules inside of one, such as nn.ModuleDict"
)


class Origin(NamedTuple):
    """What tells a variable from its namesakes, those of the same `wanted` name.

    Attributes:
        wanted: The name that the program asked for.
        form: Its dtype and shape.
        structure: Digest of the outermost module that it is in; "" if it is in none, or unknown.
        label: What the program calls that module; "" if nothing does, or unknown.
        batch: How often the program had made variables before; those of the modules of a scope are
            made at once. -1 if it is unknown.
        phase: How often the program had begun to use what it had made, and then made more.
    """

    wanted: str
    form: str
    structure: str = ""
    label: str = ""
    batch: int = 0
    phase: int = 0

    def may_be(self, other: Origin) -> bool:
        """Return whether the two can be taken for each other."""
        known = self.structure and other.structure
        alike = self.structure == other.structure or not known
        return alike and (self.wanted, self.form) == (other.wanted, other.form)


Origins = Mapping[str, Origin]
"""The origins of variables, by their names."""


def form_of(dtype: torch.dtype, shape: Iterable[int]) -> str:
    """Return the `Origin.form` of a tensor."""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def origins_by_names(forms: Mapping[str, str]) -> dict[str, Origin]:
    """Return the origins of variables of which only names and forms are known.

    "weight_1" is taken for a namesake of "weight", if there is one.
    """
    found = {}
    for name, form in forms.items():
        numbered = _NUMBERED.fullmatch(name)
        wanted = numbered[1] if numbered and numbered[1] in forms else name
        found[name] = Origin(wanted, form, batch=-1)
    return found


class Confusion(NamedTuple):
    """Variables of a program that are, or may be, others than those of the same names elsewhere.

    Attributes:
        name: One of them.
        what: What is wrong with it, as a clause.
    """

    name: str
    what: str

    def sentence(self, here: str, there: str) -> str:
        """Return what is wrong, and what to do.

        Args:
            here: What messages call the program.
            there: What they call the one that it has to agree with.
        """
        return f"{self.what.format(here=here, there=there)} {REMEDY}"


class _Groups:
    """The namesakes that other programs have made, and what is certain of them."""

    def __init__(self, theirs: Origins) -> None:
        self._theirs = theirs
        self._by_wanted: dict[str, list[str]] = {}
        for name, one in theirs.items():
            self._by_wanted.setdefault(one.wanted, []).append(name)

    def namesakes(self, own: Origin) -> Sequence[str]:
        """Return the names of all that were to be called as a variable of this program."""
        return self._by_wanted.get(own.wanted, ())

    def candidates(self, own: Origin) -> list[str]:
        """Return the names of those for which a variable of this program can be taken."""
        return [name for name in self.namesakes(own) if self._theirs[name].may_be(own)]

    def is_certain(self, name: str, own: Origin) -> bool:
        """Return whether the variable of the same name is the same one: both call it alike."""
        their = self._theirs.get(name)
        if their is None or not own.label or own.label != their.label:
            return False
        labels = [self._theirs[other].label for other in self.candidates(own)]
        return labels.count(own.label) == 1


def exchanged(mine: Origins, theirs: Origins) -> Confusion | None:
    """Find a variable that the others have, but under the name of a namesake."""
    groups = _Groups(theirs)
    for name, own in mine.items():
        their = theirs.get(name)
        for other in groups.namesakes(own) if their else ():
            fact = _mistaken_for(own, their, theirs[other]) if their and other != name else None
            if fact:
                what = f"{name!r} is {fact[0]} in {{here}}, but {fact[1]} in {{there}}, where "
                return Confusion(name, what + f"{other!r} is {fact[0]}. Make them in one order; or")
    return None


def _mistaken_for(own: Origin, their: Origin, other: Origin) -> tuple[str, str] | None:
    """Return in what `own` is `other` instead of `their`, if it is known to be."""
    if own.structure and their.structure and own.structure != their.structure:
        same = own.structure == other.structure
        return ("of one module", "of another one") if same else None
    known = own.label and their.label and own.label != their.label
    if known and own.label == other.label and own.may_be(other):
        return f"of {own.label!r}", f"of {their.label!r}"
    return None


def lacking(
    mine: Origins,
    theirs: Origins,
    phase: int | None = None,
    batches: Collection[int] | None = None,
) -> Confusion | None:
    """Find namesakes of which the others have more, so that nobody knows which ones these are.

    Args:
        mine: Those of this program.
        theirs: Those of the others.
        phase: Leave out what they made in later phases; None for nothing.
        batches: Leave out what they made in other batches; None for nothing.
    """
    groups = _Groups(
        {
            name: one
            for name, one in theirs.items()
            if (phase is None or one.phase <= phase) and (batches is None or one.batch in batches)
        }
    )
    for name, own in mine.items():
        rest = [other for other in groups.candidates(own) if other not in mine]
        if rest and not groups.is_certain(name, own):
            here = [each for each, one in mine.items() if one.may_be(own)]
            return Confusion(
                here[0],
                f"{{there}} has {listed([*here, *rest])}, which only the order of their making "
                f"tells apart, and {{here}} makes only {listed(here)}, so that nobody knows which "
                "of them that is. Make all of them, in the same order; or",
            )
    return None


def surplus(mine: Origins, theirs: Origins) -> Confusion | None:
    """Find namesakes of which the others have fewer, so that nobody knows which ones those are."""
    groups = _Groups(theirs)
    for name, own in mine.items():
        group = groups.candidates(own)
        known = all(other in mine and groups.is_certain(other, mine[other]) for other in group)
        if name not in theirs and not known:
            return Confusion(
                name,
                f"{{there}} has {listed(group)}, and {{here}} also makes {name!r}, which only the "
                "order of their making tells apart, so that nobody knows which of them that was. "
                "Make as many, in the same order; or",
            )
    return None


def doubtful(mine: Origins, theirs: Origins) -> list[str]:
    """Return namesakes that only their order makes the others' variables of the same names."""
    groups = _Groups(theirs)
    for name, own in mine.items():
        group = groups.candidates(own)
        if name in theirs and len(group) > 1 and not groups.is_certain(name, own):
            return group
    return []


def batches_of(mine: Origins, theirs: Origins) -> set[int]:
    """Return the batches in which the others have made what this program has."""
    return {theirs[name].batch for name in mine if name in theirs} - {-1}


def ambiguous(origins: Origins) -> list[str]:
    """Return variables that only the order of their making tells apart; [] if there are none."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, one in origins.items():
        groups.setdefault((one.wanted, one.form, one.structure), []).append(name)
    for names in groups.values():
        labels = {origins[name].label for name in names}
        if len(names) > 1 and ("" in labels or len(labels) < len(names)):
            return names
    return []


def listed(names: Collection[str]) -> str:
    """Return some names for a message."""
    shown = ", ".join(map(repr, list(names)[:_MOST_SHOWN]))
    rest = len(names) - _MOST_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


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
