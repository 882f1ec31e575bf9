"""The file with the key of checkpoints, a secret by which a cluster knows its own."""

from __future__ import annotations

from pathlib import Path

from stratagem_proto.configuration.secret_file import SecretFile

VARIABLE = "STRATAGEM_CHECKPOINT_KEY_FILE"

_KIND = SecretFile("key file", "key of checkpoints", VARIABLE, "--checkpoint-key-file")


def checkpoint_key_from_environment() -> str:
    """Return the key in the file that `STRATAGEM_CHECKPOINT_KEY_FILE` names, or "".

    Raises:
        InvalidArgumentError: As for `read_checkpoint_key`.
    """
    return _KIND.read_named()


def read_checkpoint_key(path: Path | None) -> str:
    """Return the key in a file, without white space around it; "" if there is no file.

    Raises:
        InvalidArgumentError: As for `SecretFile.read`.
    """
    return _KIND.read(path)
