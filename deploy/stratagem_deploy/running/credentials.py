"""What the processes of one run show each other."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from stratagem_deploy.certificates.local_authority import LocalAuthority
from stratagem_deploy.certificates.subjects import Subject
from stratagem_deploy.processes.private_directory import PrivateDirectory


class RunCredentials:
    """A token for all processes of a run, and where they encrypt, a certificate for each.

    Attributes:
        token: The secret of the cluster.
        token_file: The file with it.
    """

    def __init__(self, directory: PrivateDirectory, tls: bool) -> None:
        """Make them.

        Args:
            directory: Where they are written; it goes with the run.
            tls: Whether there are certificates.

        Raises:
            ImportError: There are, and the package cryptography is not installed.
        """
        self.token = secrets.token_urlsafe(32)
        self.token_file = directory.write_secret("token", self.token)
        self._authority = LocalAuthority(directory.path) if tls else None

    def certificates(self, role: str, job: str = "", task: int = 0) -> Mapping[str, str]:
        """Return an environment in which a process has its certificate, if there are any."""
        if self._authority is None:
            return {}
        return self._authority.environment(Subject(role, job, task))

    @property
    def of_operator(self) -> Path | None:
        """The certificates of commands that ask the servers and move tasks; None without any."""
        return self._authority.folder(Subject("operator")) if self._authority else None
