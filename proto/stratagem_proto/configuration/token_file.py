"""The file with the token, a secret that the tasks of a cluster share."""

from __future__ import annotations

from pathlib import Path

from stratagem_proto.configuration.secret_file import SecretFile

VARIABLE = "STRATAGEM_TOKEN_FILE"

_KIND = SecretFile("token file", "cluster token", VARIABLE, "--token-file")


def token_from_environment() -> str:
    """Return the token in the file that `STRATAGEM_TOKEN_FILE` names, or "".

    Raises:
        InvalidArgumentError: As for `read_token`.
    """
    return _KIND.read_named()


def read_token(path: Path | None) -> str:
    """Return the token in a file, without white space around it; "" if there is no file.

    Raises:
        InvalidArgumentError: The file is missing, cannot be read, is empty, or is not UTF-8 text;
            or the token is too short.
    """
    return _KIND.read(path)
