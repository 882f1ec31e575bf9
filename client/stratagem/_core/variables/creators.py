"""The functions that variable creation passes through.

A creator takes the next creator and the keyword arguments of the variable. The innermost sees the
call first; the last one makes a plain local variable.
Spec: VAR-1.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from stratagem._core.nesting import nesting_error
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import ContextError

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


_NUMBER_SUFFIX = re.compile(r"_\d+(?=/|$)")


def canonical_name(name: str | None) -> str:
    """Return `name` without the numbers that make names unique. Spec: VAR-10."""
    return _NUMBER_SUFFIX.sub("", name) if name else "Variable"


class SharedCreation:
    """Lets the first replica create variables and the others find them.

    The k-th variable of one canonical name is the same on all replicas. Where replicas overlap, the
    others wait for the first one as long as it runs.
    Spec: VAR-10 to VAR-12.
    """

    def __init__(self) -> None:
        self._created: defaultdict[str, list[Variable]] = defaultdict(list)
        self._changed = threading.Condition()
        self._first_runs = True

    def first_runs(self, runs: bool) -> None:
        """Note whether the first replica runs, or waits in a merge call or has ended.

        Args:
            runs: Whether it does.
        """
        with self._changed:
            self._first_runs = runs
            self._changed.notify_all()

    def creator(self, replica: int) -> Creator:
        """Return the creator for the thread of `replica`."""
        if replica == 0:
            return self._create
        return partial(self._find, replica, defaultdict(int))

    def _create(self, next_creator: NextCreator, **kwargs: object) -> Variable:
        variable = next_creator(**kwargs)
        with self._changed:
            self._created[_name_in(kwargs)].append(variable)
            self._changed.notify_all()
        return variable

    def _find(
        self,
        replica: int,
        found: defaultdict[str, int],
        next_creator: NextCreator,
        **kwargs: object,
    ) -> Variable:
        name = _name_in(kwargs)
        variables = self._created[name]
        with self._changed:
            self._changed.wait_for(lambda: found[name] < len(variables) or not self._first_runs)
        if found[name] >= len(variables):
            raise ContextError(
                f"Tried to create variable {kwargs.get('name') or 'Variable'!r} with "
                f"mismatching name on device of replica {replica}: the first replica "
                f"created {len(variables)} of the name {name!r}; create the same "
                "variables, under the same names, on every replica"
            )
        found[name] += 1
        return variables[found[name] - 1]


def _name_in(kwargs: dict[str, object]) -> str:
    name = kwargs.get("name")
    return canonical_name(name if isinstance(name, str) else None)
