"""Certificates for tests, of authorities that are made for them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from stratagem_deploy.certificates.authority import Authority
from stratagem_deploy.certificates.subjects import subject


class Certified(NamedTuple):
    """An authority, and the folder where those are that it has certified.

    Attributes:
        authority: The authority.
        folder: The folder.
    """

    authority: Authority
    folder: Path

    def of(self, task: str, days: float = 1) -> Path:
        """Return the certificates of "ps:0", "worker:0=chief" or "observer", made now."""
        who = subject(task)
        folder = self.folder / who.folder
        self.authority.certify(who.role, who.job, who.task, folder, days)
        return folder


def certified(folder: Path, cluster: str = "prod") -> Certified:
    """Return a new authority, whose certificates go to a folder."""
    return Certified(Authority.new(cluster, 1), folder)


def serial(folder: Path) -> int:
    """Return the serial number of the certificate in a folder."""
    return x509.load_pem_x509_certificate((folder / "tls.crt").read_bytes()).serial_number


DAY = datetime.timedelta(days=1)
