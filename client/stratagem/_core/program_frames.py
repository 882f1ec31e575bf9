"""The frames of the user's program above the present call, and what it calls objects there."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from inspect import CO_OPTIMIZED
from types import FrameType, ModuleType
from typing import Any

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
