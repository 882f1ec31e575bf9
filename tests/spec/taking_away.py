"""Parts of the library that raise NotImplementedError for a while."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NoReturn


class Gone:
    """What stands where a target stood: nothing can be done with it.

    In a class it is a data descriptor, so that reading raises by itself.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"taken away: {self._path}")

    __call__ = __get__ = __set__ = __delete__ = __instancecheck__ = _raise
    __iter__ = __len__ = __getitem__ = __contains__ = _raise

    def __getattr__(self, name: str) -> NoReturn:
        self._raise()


@contextmanager
def taken_away(targets: Iterable[str]) -> Iterator[None]:
    """Replace what dotted paths name by something that raises.

    Args:
        targets: Functions, methods, properties, class attributes, or names of modules.

    Raises:
        LookupError: A path names nothing.
    """
    with ExitStack() as undo:
        for target in targets:
            owner, name = owner_of(target)
            undo.callback(_restore, owner, name, vars(owner).get(name, Gone))
            _set(owner, name, Gone(target))
        yield


def owner_of(path: str) -> tuple[Any, str]:
    """Return the module or class of what a dotted path names, and its name there.

    Raises:
        LookupError: The path names nothing.
    """
    *parts, name = path.split(".")
    owner: Any = importlib.import_module(parts[0])
    for part in parts[1:]:
        owner = _member(owner, part, path)
    if not _has(owner, name):
        raise LookupError(f"{path}: {owner!r} has no {name!r}")
    return owner, name


def _has(owner: Any, name: str) -> bool:
    # A module may load what it is asked for; reading a property could do anything.
    if isinstance(owner, ModuleType):
        return hasattr(owner, name)
    return inspect.getattr_static(owner, name, Gone) is not Gone


def _member(owner: Any, part: str, path: str) -> Any:
    if not hasattr(owner, part) and isinstance(owner, ModuleType):
        importlib.import_module(f"{owner.__name__}.{part}")
    if not hasattr(owner, part):
        raise LookupError(f"{path}: {owner!r} has no {part!r}")
    return getattr(owner, part)


def _restore(owner: Any, name: str, value: Any) -> None:
    if value is not Gone:
        _set(owner, name, value)
    elif isinstance(owner, type):
        type.__delattr__(owner, name)


def _set(owner: Any, name: str, value: Any) -> None:
    # An enumeration refuses to change its members by setattr.
    setter = type.__setattr__ if isinstance(owner, type) else setattr
    setter(owner, name, value)
