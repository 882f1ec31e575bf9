"""Messages for the errors that pydantic finds."""

from __future__ import annotations

from typing import Any

from stratagem_proto.errors import StratagemError


def described(path: str, problem: Any) -> str:
    """Return a message that says what is wrong with a value.

    Args:
        path: The source of the value, for instance "TF_CONFIG.task.index".
        problem: One of the errors of a `ValidationError`.
    """
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, StratagemError):
        return f"{path}: {cause.message}"
    reason = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{path} is {problem['input']!r}: {reason}"
