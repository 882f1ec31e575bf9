"""What a function leaves of scopes in a thread that goes on."""

from __future__ import annotations

from stratagem import _devices
from stratagem._contexts import context, global_scope
from stratagem._variables import creators


def clear_remains() -> None:
    """Leave every scope of this thread, as if none had been entered.

    A function that is given up may be interrupted while it enters or leaves one, and
    `experimental_set_strategy` lasts.
    """
    if context.current_context() or creators.creators() or _devices.depth():
        context.clear()
        creators.clear()
        _devices.clear()
        global_scope.clear()
