"""The place of this process among the workers that train together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stratagem._cluster.tasks import ClusterSpec, id_in_cluster, validated, worker_count
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.serving.addresses import is_loopback


@dataclass(frozen=True)
class WorkerPlace:
    """A process among the workers that train together.

    Workers are named by rank, as in "/job:worker/replica:0/task:1"; the chief's rank is 0. They
    find each other at the meeting point, a "host:port"; a process that is alone has none. The
    attempt is the number of the start of these workers, if that is known. With a `local_rank` the
    process uses only the GPU of that number. The `local_size` is how many of them are known to be
    on its machine.
    """

    tasks: tuple[str, ...]
    rank: int = 0
    meeting_point: str = ""
    hosts_meeting: bool = False
    attempt: str = "0"
    local_rank: int | None = None
    local_size: int = 1

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.tasks)

    @property
    def name(self) -> str:
        """The name of this process's task."""
        return self.tasks[self.rank]

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all workers are known to be on this machine."""
        return self.local_size == self.size or is_loopback(self.meeting_point)

    @property
    def is_chief(self) -> bool:
        """Whether this process saves and logs. Spec: MWU-1."""
        return self.rank == 0


_ALONE = WorkerPlace(("/job:localhost/replica:0/task:0",))


def place_in_cluster(resolver: ClusterResolver) -> WorkerPlace:
    """Return the place that a resolver describes; without a cluster, a single place.

    Raises InvalidArgumentError if the task is not given, or does not train. Spec: MWU-2, MWU-3,
    MWU-7.
    """
    cluster = resolver.cluster_spec()
    if not cluster:
        return _ALONE
    job, index = resolver.task_type, resolver.task_id
    if not job or index is None:
        raise InvalidArgumentError(
            "With a cluster you must also specify `task_type` and `task_id`: which of "
            "its tasks this process is, for instance by the key 'task' of TF_CONFIG"
        )
    validated(cluster, job, index)
    rank, size = id_in_cluster(cluster, job, index), worker_count(cluster, job)
    if job == "evaluator" or size == 1:
        return WorkerPlace((_task_name(job, index),))
    return _among(_training_tasks(cluster), rank)


def _training_tasks(cluster: ClusterSpec) -> dict[str, str]:
    """Return the addresses of the chief and the workers by name, by rank."""
    return {
        _task_name(job, index): cluster.task_address(job, index)
        for job in ("chief", "worker")
        if job in cluster.jobs
        for index in cluster.task_indices(job)
    }


def _among(addresses: Mapping[str, str], rank: int) -> WorkerPlace:
    meeting_point = next(iter(addresses.values()))
    return WorkerPlace(tuple(addresses), rank, meeting_point, rank == 0)


def _task_name(job: str, index: int) -> str:
    return f"/job:{job}/replica:0/task:{index}"


_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place_by_torchrun() -> WorkerPlace | None:
    """Return the place that torchrun's environment describes, None without one."""
    environment = os.environ
    if any(name not in environment for name in _TORCHRUN):
        return None
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    agent_listens = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return WorkerPlace(
        tuple(_task_name("worker", index) for index in range(size)),
        rank,
        "{MASTER_ADDR}:{MASTER_PORT}".format(**environment),
        rank == 0 and not agent_listens,
        environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        int(environment["LOCAL_RANK"]) if "LOCAL_RANK" in environment else None,
        int(environment.get("LOCAL_WORLD_SIZE", "1")),
    )
