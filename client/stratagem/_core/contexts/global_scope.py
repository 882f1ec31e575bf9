"""The scope of a thread that no `with` statement ends, and what functions leave of scopes."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from stratagem._core import device_names
from stratagem._core.contexts import context, global_scope
from stratagem._core.contexts.context import get_strategy, has_strategy
from stratagem._core.variables import creators
from stratagem_proto.errors import ContextError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy


class _GlobalScope(threading.local):
    def __init__(self) -> None:
        self.scope: AbstractContextManager[object] | None = None


_global = _GlobalScope()


def experimental_set_strategy(strategy: AnyStrategy | None) -> None:
    """Make a strategy the current one of this thread, until another one is set.

    It stands for a `with strategy.scope()` around the rest of the program, for instance in a
    notebook.

    Args:
        strategy: The strategy, in place of the one that was set before; None to return to the
            default one.

    Raises:
        ContextError: A `with strategy.scope()` is open, or a replica is running; or a scope that
            was opened since the last call is still open.

    Spec: CTX-13, CTX-16.
    """
    _leave_global_scope()
    if has_strategy():
        raise ContextError(
            "Must not be called inside a `tf.distribute.Strategy` scope, but "
            f"{get_strategy()} is in charge; call experimental_set_strategy before "
            "`with strategy.scope()`, or instead of it"
        )
    if strategy is not None:
        scope = strategy.scope()
        scope.__enter__()
        _global.scope = scope


def clear() -> None:
    """Forget the scope of this thread, which has been left."""
    _global.scope = None


def _leave_global_scope() -> None:
    if _global.scope is not None:
        _global.scope.__exit__(None, None, None)
        _global.scope = None


def clear_remains() -> None:
    """Leave every scope of this thread, as if none had been entered.

    A function that is given up may be interrupted while it enters or leaves one, and
    `experimental_set_strategy` lasts.
    """
    if context.current_context() or creators.creators() or device_names.depth():
        context.clear()
        creators.clear()
        device_names.clear()
        global_scope.clear()
