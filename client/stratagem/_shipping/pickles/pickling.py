"""Pickles that name objects instead of containing them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from cloudpickle import cloudpickle

from stratagem._shipping.pickles import tensors
from stratagem._shipping.pickles.classes import Classes, ClassUnpickler

Name = Callable[[Any], "int | None"]
"""Returns the handle of an object, None for what travels by value."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # has no types
    """Writes values one by one: functions and classes as cloudpickle does.

    What modules have that others can import is named, in `__main__` it is contained.

    Args:
        name: Says what is named by its handle.
    """

    def __init__(self, name: Name) -> None:
        self._buffer = io.BytesIO()
        self._name = name
        super().__init__(self._buffer, protocol=5)

    def write(self, value: object) -> bytes:
        """Return a pickle of one value."""
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            self.dump(value)
            return self._buffer.getvalue()
        finally:
            # It would keep alive what it has written.
            self.clear_memo()

    def reducer_override(self, value: Any) -> Any:
        # What cloudpickle itself calls to read a pickle; it would look for each of these in its
        # module.
        if getattr(value, "__module__", None) == cloudpickle.__name__:
            return NotImplemented
        handle = self._name(value)
        if handle is not None:
            return _object_of, (handle,)
        if tensors.is_plain(value):
            return tensors.reduced(value)
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, func: FunctionType) -> tuple[Any, ...]:
        made_of, state = self._function_getnewargs(func), _state_of(func)
        making, setting = cloudpickle._make_function, cloudpickle._function_setstate
        return making, made_of, state, None, None, setting


@lru_cache(maxsize=1024)
def _submodules(code: CodeType, packages: tuple[ModuleType, ...], loaded: int) -> list[ModuleType]:
    """Return the submodules of packages that code may use.

    Args:
        code: That of a function.
        packages: What the function refers to.
        loaded: How many modules there are; with others, the answer may be another one.
    """
    found: list[ModuleType] = cloudpickle._find_imported_submodules(code, packages)
    return found


def _submodules_used(code: CodeType, used: Iterable[object]) -> list[ModuleType]:
    packages = tuple([one for one in used if isinstance(one, ModuleType)])
    return _submodules(code, packages, len(sys.modules)) if packages else []


# What cloudpickle makes of a function, but for its longest part: to look through all that is loaded
# for submodules that the function may need.
_state_of = FunctionType(
    cloudpickle._function_getstate.__code__,
    {**vars(cloudpickle), "_find_imported_submodules": _submodules_used},
)


def _object_of(handle: int) -> NoReturn:
    """Stand in pickles for `find` of the `Unpickler` that reads them."""
    raise NotImplementedError(f"only an Unpickler knows what has handle {handle}")


class Unpickler(ClassUnpickler):
    """Reads what `Pickler` writes.

    Args:
        payload: The pickle.
        find: Returns the object of a handle.
        classes: Those that there are.
    """

    def __init__(self, payload: bytes, find: Callable[[int], Any], classes: Classes) -> None:
        super().__init__(payload, classes)
        self._find = find

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == _object_of.__name__:
            return self._find
        return super().find_class(module, name)
