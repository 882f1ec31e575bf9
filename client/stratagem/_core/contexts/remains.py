"""What a function leaves of scopes in a thread that goes on."""

from __future__ import annotations

from stratagem._core import device_names
from stratagem._core.contexts import context, global_scope
from stratagem._core.variables import creators


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
