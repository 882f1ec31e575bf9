"""Who a certificate says that a process is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from typing_extensions import Self

from stratagem_proto.errors import InvalidArgumentError

ROLES = ("chief", "worker", "evaluator", "coordinator", "operator", "observer", "server", "reader")
"""What a process may be to its cluster."""

# The trust domain of SPIFFE, which is a part of DNS names, too.
_CLUSTER = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_JOB = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_ID = re.compile(r"spiffe://([^/]*)(?:/job/([^/]*)/task/([0-9]{1,9}))?/role/([^/]*)")


@dataclass(frozen=True)
class CertifiedIdentity:
    """A process, as its certificate names it.

    Attributes:
        cluster: The cluster, for instance "prod"; SPIFFE calls it a trust domain.
        role: One of `ROLES`.
        job: The job of its task; "" for a program without a task.
        task: The index of its task within the job.

    Raises:
        InvalidArgumentError: One of them cannot be in a certificate.
    """

    cluster: str
    role: str
    job: str = ""
    task: int = 0

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.cluster):
            raise InvalidArgumentError(
                f"{self.cluster!r} cannot be the name of a cluster in a certificate; give 1 to 63 "
                "small letters, digits, dots and dashes, for instance prod"
            )
        if self.role not in ROLES:
            raise InvalidArgumentError(f"{self.role!r} is no role; give one of {', '.join(ROLES)}")
        if self.job and not _JOB.fullmatch(self.job):
            raise InvalidArgumentError(
                f"{self.job!r} cannot be the name of a job in a certificate; give 1 to 63 letters, "
                "digits, dashes and underscores, for instance worker"
            )

    @property
    def uri(self) -> str:
        """The SPIFFE ID, for instance "spiffe://prod/job/worker/task/1/role/chief"."""
        task = f"/job/{self.job}/task/{self.task}" if self.job else ""
        return f"spiffe://{self.cluster}{task}/role/{self.role}"

    @property
    def label(self) -> str:
        """How messages call it, for instance "/job:worker/task:1 (chief)"."""
        return f"/job:{self.job}/task:{self.task} ({self.role})" if self.job else self.role

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names that its certificate must have, so that clients know whom they reach."""
        if not self.job:
            return ()
        own = (self.cluster, self.job, self.task), (self.cluster, self.job), (self.cluster,)
        return tuple(server_name(*each) for each in own)

    @classmethod
    def from_uri(cls, uri: str) -> Self:
        """Return who a SPIFFE ID names.

        Raises:
            InvalidArgumentError: It is not such as `uri` returns.
        """
        found = _ID.fullmatch(uri)
        if found is None:
            raise InvalidArgumentError(
                f"{uri!r} names no process of a cluster; it has to be like "
                "spiffe://CLUSTER/job/JOB/task/N/role/ROLE, or spiffe://CLUSTER/role/ROLE for a "
                "program without a task"
            )
        cluster, job, task, role = found.groups()
        return cls(cluster, role, job or "", int(task or 0))


def server_name(cluster: str, job: str = "", task: int | None = None) -> str:
    """Return the DNS name by which clients know servers, for instance "0.ps.prod.stratagem".

    A client of gRPC cannot read the SPIFFE ID of a server. It checks this name instead, wherever
    the server is.

    Args:
        cluster: The cluster.
        job: The job; "" for all servers of the cluster.
        task: The index of the task; None for all tasks of the job.
    """
    index = "" if task is None else f"{task}."
    return f"{index}{job or 'any'}.{cluster}.stratagem".lower()
