"""The file with the token, a secret that the tasks of a cluster share."""

from __future__ import annotations

import os
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_token

VARIABLE = "STRATAGEM_TOKEN_FILE"


def token_from_environment() -> str:
    """Return the token in the file that `STRATAGEM_TOKEN_FILE` names, or "".

    Raises:
        InvalidArgumentError: As for `read_token`.
    """
    path = os.environ.get(VARIABLE)
    return read_token(Path(path) if path else None)


def read_token(path: Path | None) -> str:
    """Return the token in a file, without white space around it; "" if there is no file.

    Raises:
        InvalidArgumentError: The file is missing, cannot be read, is empty, or is not UTF-8 text;
            or the token is too short.
    """
    if path is None:
        return ""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _refusal(
            path, f"cannot be read: {error.strerror}; check {VARIABLE}, and --token-file of servers"
        ) from error
    except UnicodeDecodeError as error:
        raise _refusal(path, f"is not text: {error}; write a secret in UTF-8 into it") from error
    if not token:
        raise _refusal(path, "is empty; write a secret into it")
    check_token(token, f"the cluster token in {str(path)!r}")
    return token


def _refusal(path: Path, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the token file {str(path)!r} {why}")
