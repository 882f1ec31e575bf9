"""Whom a certificate is for, and the authority of a cluster that has no other one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stratagem_proto.errors import InvalidArgumentError
from stratagem_rpc.certificates.identity import ROLES
from stratagem_rpc.certificates.presented import TLS_VARIABLE, not_installed

_TASK = re.compile(r"([^:=]+):([0-9]{1,9})(?:=(.+))?")

_ROLES_OF_JOBS = {
    "ps": "server",
    "chief": "chief",
    "worker": "worker",
    "evaluator": "evaluator",
}

# Longer than a cluster of this machine lives; the keys are in a directory that goes with it.
_DAYS = 3650


class Subject(NamedTuple):
    """A process that is to be certified.

    Attributes:
        role: What it is to the cluster.
        job: The job of its task; "" for none.
        task: The index of its task.
    """

    role: str
    job: str = ""
    task: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder, for instance "ps-0"."""
        return f"{self.job}-{self.task}" if self.job else self.role


def subject(text: str) -> Subject:
    """Return whom "ps:0", "worker:0=chief" or "observer" means.

    Raises:
        InvalidArgumentError: It means nobody.
    """
    if text in ROLES:
        return Subject(text)
    found = _TASK.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(
            f"{text!r} is no task to certify; give JOB:N, for instance ps:0, JOB:N=ROLE, or "
            f"one of the roles {', '.join(ROLES)}"
        )
    job, task, role = found.groups()
    if not (role or job in _ROLES_OF_JOBS):
        raise InvalidArgumentError(
            f"what a task of the job {job!r} is does not follow from its name; give "
            f"{text}=ROLE with one of {', '.join(ROLES)}"
        )
    return Subject(role or _ROLES_OF_JOBS[job], job, int(task))


def completed_subjects(incomplete: str) -> Iterator[str]:
    """Yield what a shell may complete to somebody who can be certified.

    Args:
        incomplete: The word so far. Bash ends words at ":" and "=", so there a role is one word.
    """
    yield from (f"{job}:0" for job in _ROLES_OF_JOBS)
    task, equals, _ = incomplete.rpartition("=")
    yield from (f"{task}{equals}{role}" for role in ROLES)


class LocalAuthority:
    """Certifies the processes of one cluster of this machine, and ends with it.

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
        self._authority = Authority.new("local", _DAYS)
        self._directory = directory / "certificates"

    def folder(self, subject: Subject) -> Path:
        """Return the certificates of a process."""
        folder = self._directory / subject.folder
        if not folder.exists():
            self._authority.certify(subject.role, subject.job, subject.task, folder, _DAYS)
        return folder

    def environment(self, subject: Subject) -> dict[str, str]:
        """Return an environment in which a process has its certificates."""
        return {TLS_VARIABLE: str(self.folder(subject))}
