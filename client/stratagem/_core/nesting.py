"""What is said where scopes are not left in the reverse order of entering."""

from __future__ import annotations

from stratagem_proto.errors import ContextError


def nesting_error(what: str) -> ContextError:
    """Return the error for leaving a scope in which another one is open.

    Args:
        what: The kind of scope.

    Spec: CTX-13.
    """
    return ContextError(
        f"{what} scope nesting error: a scope that was opened inside of this one is "
        "still open where this one is left; move experimental_set_strategy out of "
        "`with`, or close the inner scope first"
    )
