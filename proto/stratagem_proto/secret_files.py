"""Files with secrets that the tasks of a cluster share, and who can read them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_token

# The folder of container engines for secrets, which all users of the container may read.
_MOUNTED = Path("/run/secrets")


def is_readable_by_others(path: Path) -> bool:
    """Return whether other users of this machine can read a file that they should not.

    Raises:
        OSError: There is no such file.
    """
    if _MOUNTED in path.absolute().parents or os.name != "posix":
        return False
    return bool(path.stat().st_mode & stat.S_IROTH)


@dataclass(frozen=True)
class SecretFile:
    """A kind of file with a secret.

    Attributes:
        kind: What it is, for messages.
        secret: What the secret is, for messages.
        variable: The variable of the environment that names it.
        option: The option of servers that names it.
    """

    kind: str
    secret: str
    variable: str
    option: str

    def from_environment(self) -> str:
        """Return the secret in the file that the environment names; raise and return as `read`."""
        path = os.environ.get(self.variable)
        return self.read(Path(path) if path else None)

    def read(self, path: Path | None) -> str:
        """Return the secret in a file, without white space around it; "" if there is no file.

        Raises:
            InvalidArgumentError: The file is missing, cannot be read, is empty, or is not UTF-8
                text; or the secret is too short.
        """
        if path is None:
            return ""
        try:
            secret = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            where = f"{self.variable}, and {self.option} of servers"
            raise self._refusal(path, f"cannot be read: {error.strerror}; check {where}") from error
        except UnicodeDecodeError as error:
            why = f"is not text: {error}; write a secret in UTF-8 into it"
            raise self._refusal(path, why) from error
        if not secret:
            raise self._refusal(path, "is empty; write a secret into it")
        check_token(secret, f"the {self.secret} in {str(path)!r}")
        return secret

    def _refusal(self, path: Path, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"the {self.kind} {str(path)!r} {why}")


TOKEN_FILE = SecretFile("token file", "cluster token", "STRATAGEM_TOKEN_FILE", "--token-file")

CHECKPOINT_KEY_FILE = SecretFile(
    "key file",
    "key of checkpoints",
    "STRATAGEM_CHECKPOINT_KEY_FILE",
    "--checkpoint-key-file",
)
"""The key of checkpoints, by which a cluster knows its own."""
