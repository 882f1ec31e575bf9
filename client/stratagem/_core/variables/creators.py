"""The functions that variable creation passes through.

A creator takes the next creator and the keyword arguments of the variable. The innermost sees the
call first; the last one makes a plain local variable.
Spec: VAR-1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from stratagem._core.nesting import nesting_error

if TYPE_CHECKING:
    from stratagem._core.variables.variable import Variable


NextCreator = Callable[..., "Variable"]
"""The rest of the chain; takes keyword arguments."""

Creator = Callable[..., "Variable"]
"""A link of the chain: takes a `NextCreator` and keyword arguments."""


class _Creators(threading.local):
    def __init__(self) -> None:
        self.stack: tuple[Creator, ...] = ()


_creators = _Creators()


def creators() -> tuple[Creator, ...]:
    """Return the creators of this thread, outermost first."""
    return _creators.stack


def clear() -> None:
    """Leave all scopes of creators of this thread."""
    _creators.stack = ()


def create(last: NextCreator, **kwargs: object) -> Variable:
    """Make a variable by way of the creators of this thread."""
    step: NextCreator = last
    for creator in _creators.stack:
        step = partial(creator, step)
    return step(**kwargs)


class creator_scope:
    """Scope in which variables are created by `added`, the last one first.

    Raises:
        ContextError: On leaving: a scope opened inside is still open. This one can be left once
            that is closed. Spec: CTX-13.
    """

    def __init__(self, *added: Creator) -> None:
        self._added = added

    def __enter__(self) -> None:
        self._outer = _creators.stack
        self._inside = (*self._outer, *self._added)
        _creators.stack = self._inside

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _creators.stack is not self._inside:
            raise nesting_error("Variable creator")
        _creators.stack = self._outer
