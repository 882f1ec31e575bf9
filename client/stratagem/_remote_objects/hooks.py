"""Hooks that the program has added to what stays on workers, where nobody would call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem_proto.errors import FailedPreconditionError


def require_no_hooks(what: str, subject: Any, kinds: Sequence[str]) -> None:
    """Check that the program has added no hooks to an object.

    Args:
        what: What errors call it.
        subject: A tensor or an optimizer of torch.
        kinds: The attributes in which torch keeps its hooks.

    Raises:
        FailedPreconditionError: There are some.
    """
    # Each function asks for each parameter, and few have any.
    added = [hooks for kind in kinds if (hooks := getattr(subject, kind, None))]
    if not all(_is_our_own(hook) for hooks in added for hook in hooks.values()):
        raise FailedPreconditionError(
            f"{what} has hooks, which functions on worker servers would not call; do in the "
            "function what they do, for instance to gradients between backward() and step()"
        )


def _is_our_own(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("stratagem.")
