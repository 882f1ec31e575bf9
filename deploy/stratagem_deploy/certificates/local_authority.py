"""The authority of a cluster on this machine, which ends with the cluster."""

from __future__ import annotations

from pathlib import Path

from stratagem_deploy.certificates.subjects import Subject
from stratagem_proto.certificates.presented import VARIABLE, not_installed

_CLUSTER = "local"

# Longer than any such cluster lives; the keys are in a directory that goes with it.
_DAYS = 3650


class LocalAuthority:
    """Certifies the processes of one cluster.

    Args:
        directory: Where their certificates go, which only this user reads.

    Raises:
        ImportError: The package cryptography is not installed.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from stratagem_deploy.certificates.authority import Authority
        except ImportError as error:
            raise not_installed() from error
        self._authority = Authority.new(_CLUSTER, _DAYS)
        self._directory = directory / "certificates"

    def folder(self, subject: Subject) -> Path:
        """Return the certificates of a process."""
        folder = self._directory / subject.folder
        if not folder.exists():
            self._authority.certify(subject.role, subject.job, subject.task, folder, _DAYS)
        return folder

    def environment(self, subject: Subject) -> dict[str, str]:
        """Return an environment in which a process has its certificates."""
        return {VARIABLE: str(self.folder(subject))}
