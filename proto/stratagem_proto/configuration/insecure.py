"""Whether this process may speak unencrypted with other machines.

Servers have an option for it. Whatever has no options goes by the same environment variable.
"""

from __future__ import annotations

import os

from stratagem_proto.errors import InvalidArgumentError

VARIABLE = "STRATAGEM_INSECURE"


def is_insecure() -> bool:
    """Return what `STRATAGEM_INSECURE` says, by default False.

    Raises:
        InvalidArgumentError: It says neither yes nor no.
    """
    said = os.environ.get(VARIABLE, "")
    # Late: few processes ask, and those that do are about to connect to others.
    from pydantic import TypeAdapter, ValidationError

    try:
        return bool(said) and TypeAdapter(bool).validate_python(said)
    except ValidationError as error:
        raise InvalidArgumentError(
            f"{VARIABLE} is {said!r}; set it to true or false, or leave it out"
        ) from error


def be_insecure() -> None:
    """Let this process, and those that it starts, speak unencrypted with other machines."""
    os.environ[VARIABLE] = "true"
