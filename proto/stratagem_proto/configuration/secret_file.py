"""Files with a secret that the tasks of a cluster share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_token


@dataclass(frozen=True)
class SecretFile:
    """A kind of file with a secret.

    Attributes:
        kind: What it is, for messages.
        secret: What the secret is, for messages.
        where: Where it is named.
    """

    kind: str
    secret: str
    where: str

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
            raise self._refusal(
                path, f"cannot be read: {error.strerror}; check {self.where} of servers"
            ) from error
        except UnicodeDecodeError as error:
            why = f"is not text: {error}; write a secret in UTF-8 into it"
            raise self._refusal(path, why) from error
        if not secret:
            raise self._refusal(path, "is empty; write a secret into it")
        check_token(secret, f"the {self.secret} in {str(path)!r}")
        return secret

    def _refusal(self, path: Path, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"the {self.kind} {str(path)!r} {why}")
