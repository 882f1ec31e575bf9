"""The functions that variable creation passes through.

A creator takes the next creator and the keyword arguments of the variable. The
innermost sees the call first; the last one makes a plain local variable.
Spec: VAR-1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem._variables.variable import Variable


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


def create(last: NextCreator, **kwargs: object) -> Variable:
    """Make a variable by way of the creators of this thread."""
    step: NextCreator = last
    for creator in _creators.stack:
        step = partial(creator, step)
    return step(**kwargs)


@contextmanager
def creator_scope(*added: Creator) -> Iterator[None]:
    """Scope in which variables are created by `added`, the last one first."""
    outer = _creators.stack
    _creators.stack = (*outer, *added)
    try:
        yield
    finally:
        _creators.stack = outer
