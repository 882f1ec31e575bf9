"""Reading variables on servers once and for all, for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem._parameter_server.variables.variable import RemoteVariable

_read: ContextVar[set[RemoteVariable] | None] = ContextVar("stratagem_cached_reads", default=None)


@contextmanager
def cache_variable_reads() -> Iterator[None]:
    """Scope in which each variable on a server is fetched once at most.

    What is read of it first is what all later reads in the scope give, also those of replicas,
    whatever is written to it meanwhile. Rows of tables are read anew. The scope is one of this
    thread; of variables that another thread reads meanwhile, this one sees what that has fetched.
    Variables in this process are not concerned::

        with stratagem.experimental.cache_variable_reads():
            for batch in batches:
                strategy.run(evaluate, args=(batch,))

    Raises:
        InvalidArgumentError: It is within another one.

    Spec: PSV-11.
    """
    if _read.get() is not None:
        raise InvalidArgumentError(
            "cache_variable_reads scope cannot be nested: a scope around this one "
            "caches what is read here as well"
        )
    token = _read.set(set())
    try:
        yield
    finally:
        _read.reset(token)


def unread(variables: Iterable[RemoteVariable]) -> Iterable[RemoteVariable]:
    """Return those of some variables that have to be fetched to be read."""
    known = _read.get()
    return variables if known is None else [v for v in variables if v not in known]


def note_read(variables: Iterable[RemoteVariable]) -> None:
    """Note that variables have been fetched."""
    known = _read.get()
    if known is not None:
        known.update(variables)
