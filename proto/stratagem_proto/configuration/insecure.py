"""Whether this process may speak unencrypted with other machines."""

from __future__ import annotations

import os

from stratagem_proto.errors import InvalidArgumentError

VARIABLE = "STRATAGEM_INSECURE"

_WORDS = {"1": True, "true": True, "yes": True, "": False, "0": False, "false": False, "no": False}


def insecure_from_environment() -> bool:
    """Return what `STRATAGEM_INSECURE` says, by default False.

    Raises:
        InvalidArgumentError: It says neither yes nor no.
    """
    said = os.environ.get(VARIABLE, "")
    try:
        return _WORDS[said.lower()]
    except KeyError as error:
        raise InvalidArgumentError(
            f"{VARIABLE} is {said!r}; set it to true or false, or leave it out"
        ) from error
