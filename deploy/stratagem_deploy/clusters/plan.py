"""The plan of a cluster: its tasks and the settings of its servers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stratagem_deploy.clusters.storage import Storage
from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings

_NO_REPLICATION: Mapping[str, int | str] = {}


@dataclass(frozen=True)
class Plan:
    """The tasks of a cluster, and the settings of the servers among them.

    Attributes:
        ps: Number of parameter servers.
        workers: Number of workers that make calls.
        worker_servers: Number of workers that serve a coordinator.
        token: The cluster's secret.
        lease_seconds: Silence after which a server takes a client for dead; None for what is usual
            for its kind.
        storage: The files and folders of parameter servers.
        replicas: How many processes have the state of each parameter server.
        movable: Whether tasks may move between parameter servers.
        tls: Whether processes are known by certificates, and encrypt what they send.

    Raises:
        InvalidArgumentError: A number is negative or there are no tasks, there are workers of both
            kinds, or a folder is given without parameter servers.
    """

    ps: int
    workers: int
    worker_servers: int
    token: str = field(repr=False)
    lease_seconds: float | None
    storage: Storage
    replicas: int = 1
    movable: bool = False
    tls: bool = False

    def __post_init__(self) -> None:
        numbers = self.ps, self.workers, self.worker_servers
        if min(numbers) < 0 or not any(numbers):
            raise InvalidArgumentError(
                f"a cluster of {self.ps} parameter servers, {self.workers} workers and "
                f"{self.worker_servers} worker servers cannot be; ask for at least one "
                "of them"
            )
        if self.workers and self.worker_servers:
            raise InvalidArgumentError(
                "the workers of a cluster either run the program or serve a "
                "coordinator; ask for workers or for worker_servers, not for both"
            )
        storage = self.storage
        folder = storage.restore or storage.durability_folder or storage.policy
        if folder and not self.ps:
            raise InvalidArgumentError(
                f"a cluster without parameter servers has no use for {folder!r}; ask for servers, "
                "or leave it out, and restore a checkpoint by strategy.restore()"
            )

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of tasks of each job."""
        return {"ps": self.ps, "worker": self.workers + self.worker_servers}

    @property
    def served(self) -> Mapping[str, int]:
        """The number of servers of each job."""
        return {"ps": self.ps, "worker": self.worker_servers}

    def replicas_of(self, job: str) -> int:
        """Return how many processes each server of a job has."""
        return self.replicas if job == "ps" else 1

    def new_server(
        self,
        job: str,
        index: int,
        address: str,
        *,
        insecure: bool = False,
        replication: Mapping[str, int | str] = _NO_REPLICATION,
    ) -> ParameterServer | WorkerServer:
        """Return the server of a task, not started, for this process.

        Args:
            job: The job.
            index: Index in the job.
            address: Where it is to listen.
            insecure: Whether other machines may connect.
            replication: What makes a parameter server a replica.
        """
        options: dict[str, Any] = {"bind": address, "task": index, "token": self.token}
        if self.lease_seconds is not None:
            options["lease_seconds"] = self.lease_seconds
        if job == "worker":
            return WorkerServer(WorkerSettings(**options, insecure=insecure))
        options |= {**self.storage.settings, **replication}
        return ParameterServer(ServerSettings(**options, insecure=insecure))


def planned(
    ps: int,
    workers: int | None,
    worker_servers: int,
    lease_seconds: float | None,
    storage: Storage,
    replicas: int = 1,
) -> Plan:
    """Return the plan of a cluster, with a secret made for it.

    Args:
        ps: Number of parameter servers.
        workers: Number of workers that make calls; by default one, or none where there are worker
            servers.
        worker_servers: Number of workers that serve a coordinator.
        lease_seconds: As for `Plan`.
        storage: As for `Plan`.
        replicas: As for `Plan`.

    Raises:
        InvalidArgumentError: As for `Plan`.
    """
    return Plan(
        ps,
        workers if workers is not None else int(not worker_servers),
        worker_servers,
        token=secrets.token_urlsafe(32),
        lease_seconds=lease_seconds,
        storage=storage,
        replicas=replicas,
    )
