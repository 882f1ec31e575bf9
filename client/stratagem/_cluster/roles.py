"""The roles of the tasks of a training cluster.

A training cluster has the jobs "chief", "worker", "ps" and "evaluator", none of them required.
Spec: MWU-1 to MWU-7.
"""

from __future__ import annotations

from collections.abc import Mapping

from stratagem._cluster.spec import ClusterSpec, Tasks
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.replica_addresses import replica_addresses, require_one_address
from stratagem_proto.v1.cluster_pb2 import ClusterDef

Cluster = ClusterSpec | ClusterDef | Mapping[str, Tasks]

_JOBS = ("chief", "worker", "evaluator", "ps")
_SINGLE = ("chief", "evaluator")


def normalize_cluster_spec(cluster_spec: Cluster) -> ClusterSpec:
    """Return `cluster_spec` as a `ClusterSpec`.

    Raises:
        InvalidArgumentError: It is none of the accepted kinds. Spec: MWU-6.
    """
    try:
        return ClusterSpec(cluster_spec)
    except InvalidTypeError as error:
        raise InvalidArgumentError(
            f"`cluster_spec` should be dict or a `ClusterSpec` or a `ClusterDef`: {error}"
        ) from error


def is_chief(cluster_spec: Cluster, task_type: str | None, task_id: int | None) -> bool:
    """Return whether a task creates what the others attach to.

    That is the chief, else worker 0; an evaluator is a cluster of its own. Raises as `validated`.
    Spec: MWU-1.
    """
    cluster = validated(cluster_spec, task_type, task_id)
    if task_type in _SINGLE:
        return True
    return task_type == "worker" and task_id == 0 and not _count(cluster, "chief")


def worker_count(cluster_spec: Cluster, task_type: str | None) -> int:
    """Return how many tasks do the same work as one of `task_type`, if such tasks train.

    Raises InvalidArgumentError if not, and as `validated`. Spec: MWU-2.
    """
    cluster = validated(cluster_spec, task_type, None)
    if task_type in ("chief", "worker"):
        return _count(cluster, "chief") + _count(cluster, "worker")
    if task_type == "evaluator":
        return _count(cluster, "evaluator")
    raise InvalidArgumentError(
        f"Unexpected `task_type` {task_type!r}: only chief, worker and evaluator "
        "tasks are counted as workers"
    )


def id_in_cluster(cluster_spec: Cluster, task_type: str | None, task_id: int | None) -> int:
    """Return the number of a task among those that do the same work.

    The chief is number 0 and the workers follow it. Raises InvalidArgumentError if the task is none
    of those, and as `validated`. Spec: MWU-3.
    """
    cluster = validated(cluster_spec, task_type, task_id)
    if task_type == "chief":
        return 0
    if task_type == "worker":
        return (task_id or 0) + _count(cluster, "chief")
    if task_type == "evaluator":
        return task_id or 0
    raise InvalidArgumentError(f"There is no id for task_type {task_type!r}")


def collective_leader(cluster_spec: Cluster, task_type: str | None, task_id: int | None) -> str:
    """Return the device-name prefix of the task that leads the workers, or "".

    Raises as `validated`. Spec: MWU-4.
    """
    cluster = validated(cluster_spec, task_type, task_id)
    if task_type == "evaluator" or not cluster:
        return ""
    return _first_of(cluster, "chief") or "/job:worker/replica:0/task:0"


def coordination_leader(cluster_spec: Cluster) -> str:
    """Return the device-name prefix of the task that all can reach, or "".

    Spec: MWU-5.
    """
    cluster = normalize_cluster_spec(cluster_spec)
    if not cluster:
        return ""
    leader = _first_of(cluster, "ps") or _first_of(cluster, "chief")
    return leader or "/job:worker/replica:0/task:0"


def validated(cluster_spec: Cluster, task_type: str | None, task_id: int | None) -> ClusterSpec:
    """Return the cluster after checking it and a task's place in it.

    An evaluator need not be listed, and a `task_id` of None is not checked.

    Raises:
        InvalidArgumentError: A job is not one of a training cluster, there are two chiefs or
            evaluators, the task is not in the cluster, or an address lists what are no replicas of
            a parameter server. Spec: MWU-7.
    """
    cluster = normalize_cluster_spec(cluster_spec)
    _check_jobs(cluster)
    _check_replicas(cluster)
    if task_type is not None:
        _check_task(cluster, task_type, task_id)
    return cluster


def _check_jobs(cluster: ClusterSpec) -> None:
    if foreign := [job for job in cluster.jobs if job not in _JOBS]:
        raise InvalidArgumentError(
            f"Disallowed task type found in cluster spec: {foreign[0]!r} in {cluster}; "
            f"a training cluster has the jobs {', '.join(_JOBS)}"
        )
    for job in _SINGLE:
        if _count(cluster, job) > 1:
            raise InvalidArgumentError(
                f"There must be at most one {job!r} task, but {cluster} has {_count(cluster, job)}"
            )


def _check_replicas(cluster: ClusterSpec) -> None:
    for job in cluster.jobs:
        check = replica_addresses if job == "ps" else require_one_address
        for index in cluster.task_indices(job):
            check(f"/job:{job}/task:{index}", cluster.task_address(job, index))


def _check_task(cluster: ClusterSpec, task_type: str, task_id: int | None) -> None:
    if task_type not in _JOBS:
        raise InvalidArgumentError(
            f"Unrecognized task_type {task_type!r}; valid ones are {', '.join(_JOBS)}"
        )
    if task_type not in cluster.jobs:
        if task_type == "evaluator":
            return
        raise InvalidArgumentError(f"`task_type` {task_type!r} not found in {cluster}")
    if task_id is None or task_id in cluster.task_indices(task_type):
        return
    if task_id < 0:
        raise InvalidArgumentError(
            f"The `task_id` {task_id} of {task_type!r} is negative; tasks are numbered from 0"
        )
    if task_id >= _count(cluster, task_type):
        raise InvalidArgumentError(
            f"The `task_id` {task_id} exceeds the maximum id of {task_type!r} tasks in {cluster}"
        )


def _count(cluster: ClusterSpec, job: str) -> int:
    return cluster.num_tasks(job) if job in cluster.jobs else 0


def _first_of(cluster: ClusterSpec, job: str) -> str:
    return f"/job:{job}/replica:0/task:0" if _count(cluster, job) else ""
