"""The secret that proves to servers that this process belongs to the cluster."""

from __future__ import annotations

import os
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError

_VARIABLE = "STRATAGEM_TOKEN_FILE"


def token_from_environment() -> str:
    """Return the contents of the file that `STRATAGEM_TOKEN_FILE` names, or "".

    Raises:
        InvalidArgumentError: The file cannot be read.
    """
    path = os.environ.get(_VARIABLE)
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidArgumentError(
            f"the token file {path!r} that {_VARIABLE} names cannot be read: "
            f"{error.strerror}"
        ) from error
