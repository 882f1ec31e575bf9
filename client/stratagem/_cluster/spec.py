"""Which tasks a cluster has, and where they listen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_proto.v1.cluster_pb2 import ClusterDef, JobDef

Tasks: TypeAlias = Sequence[str] | Mapping[int, str]


class ClusterSpec:
    """A cluster as a set of jobs, each with numbered tasks and their addresses.

    Args:
        cluster: Addresses ("host:port") by job name: a list, or a mapping from task index (a
            number, or a string of digits) where indices have gaps. Or a `ClusterDef`, or another
            `ClusterSpec`. That of a parameter server may list its replicas, with commas between.

    Raises:
        InvalidTypeError: `cluster`, a job's tasks, a name, an index or an address has another type.
        InvalidArgumentError: A task index is negative.

    Spec: CLS-1 to CLS-10.
    """

    __module__ = "stratagem"

    def __init__(self, cluster: Mapping[str, Tasks] | ClusterDef | ClusterSpec) -> None:
        self._tasks = _normalised(cluster)

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._tasks)

    def num_tasks(self, job_name: str) -> int:
        """Return how many tasks the job has.

        Raises:
            InvalidArgumentError: No job has this name.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the indices of the job's tasks, ascending.

        Raises:
            InvalidArgumentError: No job has this name.
        """
        return sorted(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of a task, "host:port".

        A task of the job ps may have replicas; then it is their addresses with commas between.

        Raises:
            InvalidArgumentError: There is no such job, or no such task in it.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise InvalidArgumentError(
                f"No task with index {task_index!r} in job {job_name!r}; it has "
                f"the indices {sorted(tasks)}"
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the job's addresses by task index, None in gaps.

        Raises:
            InvalidArgumentError: No job has this name.
        """
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, Tasks]:
        """Return the tasks by job: a list, or a dict if indices have gaps.

        A job without tasks becomes an empty dict. Spec: CLS-2.
        """
        return {job: _listed(tasks) for job, tasks in self._tasks.items()}

    def as_cluster_def(self) -> ClusterDef:
        """Return the cluster as a message."""
        jobs = [JobDef(name=job, tasks=tasks) for job, tasks in self._tasks.items()]
        return ClusterDef(job=jobs)

    def _job(self, job_name: str) -> dict[int, str]:
        try:
            return self._tasks[job_name]
        except KeyError:
            raise InvalidArgumentError(
                f"No such job in cluster: {job_name!r}; the cluster has "
                f"{sorted(self._tasks) or 'no jobs'}"
            ) from None

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __eq__(self, other: object) -> bool:
        try:
            return self._tasks == _normalised(other)
        except (InvalidTypeError, InvalidArgumentError):
            return NotImplemented

    __hash__: ClassVar[None]  # type: ignore[assignment] # it also equals unhashable dicts

    def __repr__(self) -> str:
        tasks = self.as_dict()
        items = ", ".join(f"{job!r}: {tasks[job]!r}" for job in sorted(tasks))
        return f"ClusterSpec({{{items}}})"


def _normalised(cluster: object) -> dict[str, dict[int, str]]:
    if isinstance(cluster, ClusterSpec):
        return {job: dict(tasks) for job, tasks in cluster._tasks.items()}
    if isinstance(cluster, ClusterDef):
        return {job.name: dict(job.tasks) for job in cluster.job}
    if isinstance(cluster, Mapping):
        return {_job_name(job): _numbered(job, cluster[job]) for job in cluster}
    raise InvalidTypeError(
        "A cluster is a dict of lists or dicts of addresses, a ClusterDef or a "
        f"ClusterSpec, not {cluster!r}"
    )


def _job_name(job: object) -> str:
    if not isinstance(job, str):
        raise InvalidTypeError(f"A job's name is a string, not {job!r}")
    return job


def _numbered(job: str, tasks: object) -> dict[int, str]:
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise InvalidTypeError(
            f"The tasks of job {job!r} are a list of addresses or a dict of them by "
            f"index, not {tasks!r}"
        )
    return {_index(job, index): _address(job, address, index) for index, address in tasks.items()}


def _index(job: str, given: object) -> int:
    # Keys of JSON are strings.
    index = int(given) if isinstance(given, str) and given.isdecimal() else given
    if not isinstance(index, int):
        raise InvalidTypeError(f"Task index {given!r} of job {job!r} is not an integer")
    if index < 0:
        raise InvalidArgumentError(f"Task index {index} of job {job!r} is negative")
    return index


def _address(job: str, address: object, index: object) -> str:
    if not isinstance(address, str):
        raise InvalidTypeError(
            f"The address of task {index} of job {job!r} is a string such as "
            f"'host:2222', not {address!r}"
        )
    return address


def _listed(tasks: dict[int, str]) -> Tasks:
    dense = tasks and max(tasks) + 1 == len(tasks)
    return [tasks[index] for index in range(len(tasks))] if dense else dict(tasks)
