"""Telling variables apart whose program gives them the same name.

Of several variables that were to be called "weight", the second one made is "weight_1". Another
program knows which one that is only if it makes all of them, in the same order. What else is known
of a variable, its origin, shows most programs that do not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import torch

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

    def of(self, own: Origin) -> list[str]:
        """Return the names of those for which a variable of this program can be taken."""
        names = self._by_wanted.get(own.wanted, ())
        return [name for name in names if self._theirs[name].may_be(own)]

    def others_of(self, name: str, own: Origin) -> list[str]:
        """Return the names of all others of the same wanted name."""
        return [other for other in self._by_wanted.get(own.wanted, ()) if other != name]

    def is_certain(self, name: str, own: Origin) -> bool:
        """Return whether the variable of the same name is the same one: both call it alike."""
        their = self._theirs.get(name)
        if their is None or not own.label or own.label != their.label:
            return False
        labels = [self._theirs[other].label for other in self.of(own)]
        return labels.count(own.label) == 1


def exchanged(mine: Origins, theirs: Origins) -> Confusion | None:
    """Find a variable that the others have, but under the name of a namesake."""
    groups = _Groups(theirs)
    for name, own in mine.items():
        their = theirs.get(name)
        for other in groups.others_of(name, own) if their else ():
            fact = _tells(own, their, theirs[other]) if their else None
            if fact:
                what = f"{name!r} is {fact[0]} in {{here}}, but {fact[1]} in {{there}}, where "
                return Confusion(name, what + f"{other!r} is {fact[0]}. Make them in one order; or")
    return None


def _tells(own: Origin, their: Origin, other: Origin) -> tuple[str, str] | None:
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
        rest = [other for other in groups.of(own) if other not in mine]
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
        group = groups.of(own)
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
        group = groups.of(own)
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
