"""Telling whether a call travels as an earlier one did, without pickling it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import (
    CellType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodType,
    ModuleType,
    UnionType,
)
from typing import Any, TypeAlias

import cloudpickle
import torch

from stratagem._shipping.calls.call import Call
from stratagem._shipping.pickles import tensors
from stratagem._shipping.pickles.marks import (
    ATOMS,
    MAPPINGS,
    SEQUENCES,
    mark_of_float,
    mark_of_tensor,
)

Name: TypeAlias = "Callable[[Any], int | None]"
Mark: TypeAlias = tuple[Any, ...]

_DEEPEST = 20
# What cloudpickle takes along of the globals of every function.
_ALWAYS_TAKEN = "__package__", "__name__", "__path__", "__file__"
_OF_FUNCTION = (
    "__name__",
    "__qualname__",
    "__module__",
    "__doc__",
    "__defaults__",
    "__kwdefaults__",
    "__annotations__",
    "__dict__",
    "__type_params__",
)


def mark_of_call(call: Call, name: Name) -> Mark | None:
    """Return what is equal only for calls of which the same is pickled.

    So it tells what the function refers to, in its cells and in the globals that its
    code names, as it is now; and which parts are one object, because what one function
    writes another may read.

    Args:
        call: The call.
        name: Returns the handle of an object, None for what travels by value.

    Returns:
        The mark, which can be hashed; None if only a pickle can tell.
    """
    if cloudpickle.list_registry_pickle_by_value():
        # Modules may then be contained in pickles.
        return None
    marking = _Marking(name)
    arguments = tuple(call.args), tuple(call.kwargs.items())
    parts = call.function, *arguments, call.strategy
    try:
        # Which submodules a function needs depends on those that are loaded.
        return len(sys.modules), marking.all_of(parts, 0)
    except _Unmarkable:
        return None


class _Unmarkable(Exception):
    """Only the pickle of something tells whether it is another one."""


class _Marking:
    """The making of one mark."""

    def __init__(self, name: Name) -> None:
        self._name = name
        self._seen: dict[int, int] = {}

    def of(self, value: Any, depth: int) -> Mark:
        cls = type(value)
        if cls in ATOMS or cls is torch.dtype:
            return cls, value
        if cls is float:
            return mark_of_float(value)
        if depth > _DEEPEST:
            raise _Unmarkable
        if cls is tuple:
            return tuple, self.all_of(value, depth + 1)
        rule = _RULES.get(cls)
        if rule is not None:
            return self._once(value, rule, depth + 1)
        if isinstance(value, type):
            return _of_global(value)
        return self._of_named(value)

    def all_of(self, values: Iterable[Any], depth: int) -> Mark:
        # Most are atoms, which are not worth a call each.
        return tuple(
            [
                (cls, value) if (cls := type(value)) in ATOMS else self.of(value, depth)
                for value in values
            ]
        )

    def _once(self, value: Any, rule: _Rule, depth: int) -> Mark:
        """The mark of what may be changed; where it comes again, that it does."""
        found = self._seen.get(id(value))
        if found is not None:
            return "again", found
        self._seen[id(value)] = len(self._seen)
        if type(value) is dict and not value:
            return dict, ()  # as every function has two
        return rule(self, value, depth)

    def _of_named(self, value: Any) -> Mark:
        handle = self._name(value)
        if handle is None:
            raise _Unmarkable
        return "handle", handle

    def of_function(self, value: FunctionType, depth: int) -> Mark:
        if _is_importable(value):
            return _of_global(value)
        code, known = value.__code__, value.__globals__
        taken = [key for key in _globals_of(code) if key in known]
        return (
            code,
            code.co_filename,
            self._once(known, _nothing, depth),
            tuple(taken),
            self.all_of([known[key] for key in taken], depth),
            self.all_of(value.__closure__ or (), depth),
            self.all_of([getattr(value, key, None) for key in _OF_FUNCTION], depth),
        )

    def of_cell(self, value: CellType, depth: int) -> Mark:
        try:
            return CellType, self.of(value.cell_contents, depth)
        except ValueError:
            return CellType, "empty"

    def of_method(self, value: MethodType, depth: int) -> Mark:
        return MethodType, self.all_of((value.__func__, value.__self__), depth)

    def of_module(self, value: ModuleType, depth: int) -> Mark:
        if sys.modules.get(value.__name__) is not value:
            raise _Unmarkable
        return ModuleType, value.__name__

    def of_mapping(self, value: Mapping[Any, Any], depth: int) -> Mark:
        return type(value), self.all_of(value.items(), depth)

    def of_sequence(self, value: Iterable[Any], depth: int) -> Mark:
        return type(value), self.all_of(value, depth)

    def of_tensor(self, value: torch.Tensor, depth: int) -> Mark:
        mark = mark_of_tensor(value) if tensors.is_plain(value) else None
        if mark is None:
            return self._of_named(value)
        return torch.Tensor, mark

    def of_generic(self, value: Any, depth: int) -> Mark:
        origin = getattr(value, "__origin__", None)
        return type(value), self.all_of((origin, value.__args__), depth)


_Rule: TypeAlias = Callable[[_Marking, Any, int], Mark]


def _nothing(marking: _Marking, value: Any, depth: int) -> Mark:
    return ()


_RULES: Mapping[type, _Rule] = {
    FunctionType: _Marking.of_function,
    CellType: _Marking.of_cell,
    MethodType: _Marking.of_method,
    ModuleType: _Marking.of_module,
    GenericAlias: _Marking.of_generic,
    UnionType: _Marking.of_generic,
    torch.Tensor: _Marking.of_tensor,
    **dict.fromkeys(MAPPINGS, _Marking.of_mapping),
    **dict.fromkeys(SEQUENCES, _Marking.of_sequence),
}


@lru_cache(maxsize=1024)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    """The names of the globals that a function, or one in it, may use."""
    used = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith("_GLOBAL")
    }
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return tuple(sorted(used.union(_ALWAYS_TAKEN, *map(_globals_of, inner))))


def _of_global(value: Any) -> Mark:
    if not _is_importable(value):
        raise _Unmarkable
    return "global", value.__module__, value.__qualname__


def _is_importable(value: Any) -> bool:
    """Whether a function or class is what its module has under its name."""
    if value.__module__ == "__main__":
        return False
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value
