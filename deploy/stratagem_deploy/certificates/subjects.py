"""Whom a certificate is for, as the command line names them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from stratagem_proto.certificates.identity import ROLES
from stratagem_proto.errors import InvalidArgumentError

_TASK = re.compile(r"([^:=]+):([0-9]{1,9})(?:=(.+))?")

_ROLES_OF_JOBS = {
    "ps": "server",
    "chief": "chief",
    "worker": "worker",
    "evaluator": "evaluator",
}


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
