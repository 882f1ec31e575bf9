"""Warnings that a spelling of an earlier version has a new one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

warned: set[str] = set()
"""The spellings that this process has been told about."""


def old_spelling(replacement: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a function, method or constructor as an old spelling of something else.

    Its first call in a process gives a `DeprecationWarning`. Where warnings are errors, every call
    raises.

    Args:
        replacement: What to write instead, for the sentence "use ... instead".
    """

    def mark(spelling: Callable[_P, _R]) -> Callable[_P, _R]:
        key = f"{spelling.__module__}.{spelling.__qualname__}"
        name = key.removesuffix(".__init__").rpartition(".")[2]
        message = f"{name} is deprecated; use {replacement} instead"

        @wraps(spelling)
        def forward(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if key not in warned:
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                warned.add(key)
            return spelling(*args, **kwargs)

        vars(forward)["__deprecated__"] = message  # as of typing.deprecated
        return forward

    return mark
