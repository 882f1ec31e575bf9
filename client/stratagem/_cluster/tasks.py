"""Which tasks a cluster has, what each of them is for, and which one this process is.

A training cluster has the jobs "chief", "worker", "ps" and "evaluator", none of them required.
Spec: MWU-1 to MWU-7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from stratagem_proto.replica_addresses import replica_addresses, require_one_address
from stratagem_proto.v1.cluster_pb2 import ClusterDef, JobDef
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_EVALUATOR, ROLE_WORKER, Role

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
            none = "no jobs, as that of a program without TF_CONFIG, which is the only worker"
            raise InvalidArgumentError(
                f"No such job in cluster: {job_name!r}; the cluster has "
                f"{sorted(self._tasks) or none}"
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
        if foreign := [job for job in cluster if not isinstance(job, str)]:
            raise InvalidTypeError(f"A job's name is a string, not {foreign[0]!r}")
        return {job: _numbered(job, cluster[job]) for job in cluster}
    raise InvalidTypeError(
        "A cluster is a dict of lists or dicts of addresses, a ClusterDef or a "
        f"ClusterSpec, not {cluster!r}"
    )


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


COORDINATOR = (
    "A program with a ClusterCoordinator is the task chief 0 of a cluster that has the "
    "jobs chief, worker and ps: SimpleClusterResolver(ClusterSpec({'chief': "
    "['localhost:1'], 'worker': [addresses of worker servers], 'ps': [addresses of "
    "parameter servers]}), task_type='chief', task_id=0). Nobody calls the chief's "
    "address"
)
"""How the cluster of a coordinator is described."""


@dataclass(frozen=True)
class Membership:
    """A task's place in its cluster."""

    cluster: ClusterSpec
    task_type: str
    task_id: int

    @classmethod
    def checked(
        cls, cluster: ClusterSpec, task_type: str | None, task_id: int | None
    ) -> Membership:
        """Check a task and its cluster.

        Raises:
            InvalidArgumentError: The task is not given, or the cluster has no parameter servers, or
                one without a port. Spec: PS1-2, PS1-3, MWU-7.
        """
        if not task_type or task_id is None:
            raise InvalidArgumentError(
                "With a cluster you must also specify `task_type` and `task_id`: which of its "
                f"tasks this process is, for instance by the key 'task' of TF_CONFIG. {COORDINATOR}"
            )
        if task_type == "chief" and "chief" not in cluster.jobs:
            raise InvalidArgumentError(f"`task_type` 'chief' not found in {cluster}. {COORDINATOR}")
        validated(cluster, task_type, task_id)
        if "ps" not in cluster.jobs or not cluster.num_tasks("ps"):
            raise InvalidArgumentError(
                "ParameterServerStrategy needs to have `ps` jobs: there must be at least one ps, "
                f"but {cluster} has none; add the addresses of parameter servers"
            )
        for index in cluster.task_indices("ps"):
            name = f"/job:ps/task:{index}"
            for address in replica_addresses(name, cluster.task_address("ps", index)):
                _require_port(name, address)
        return cls(cluster, task_type, task_id)

    @property
    def name(self) -> str:
        """The name of the task, as in "/job:worker/task:1"."""
        return f"/job:{self.task_type}/task:{self.task_id}"

    @cached_property
    def is_chief(self) -> bool:
        """Whether the task initialises, saves and logs. Spec: PS1-9, MWU-1."""
        return is_chief(self.cluster, self.task_type, self.task_id)

    @property
    def creates(self) -> bool:
        """Whether it creates the variables, instead of attaching to them."""
        return self.is_chief and self.task_type != "evaluator"

    @property
    def trains(self) -> bool:
        """Whether it takes steps, for which others may wait."""
        return self.task_type in ("chief", "worker")

    @property
    def creator(self) -> tuple[str, int]:
        """Job and index of the task that creates the variables."""
        has_chief = "chief" in self.cluster.jobs and self.cluster.num_tasks("chief")
        return ("chief", 0) if has_chief else ("worker", 0)

    @property
    def has_others(self) -> bool:
        """Whether programs of other tasks may use the variables that this one makes."""
        return self.num_training_tasks > 1 or "evaluator" in self.cluster.jobs

    @property
    def creator_place(self) -> str:
        """The creator's job and index, and its address if the cluster has one."""
        job, index = self.creator
        name = f"/job:{job}/task:{index}"
        if job not in self.cluster.jobs or index not in self.cluster.task_indices(job):
            return name
        return f"{name} at {self.cluster.task_address(job, index)}"

    @property
    def session_filters(self) -> list[str]:
        """The device filters of the sessions of this task. Spec: PCF-2 to PCF-4."""
        own = [] if self.task_type == "ps" else [self.name]
        return [*own, "/job:ps"] if self.task_type in ("chief", "worker") else own

    @property
    def coordinated_filters(self) -> list[str]:
        """The same under a coordinator, which sees all tasks. Spec: PS2-8."""
        return [self.name, "/job:ps", "/job:chief"] if self.task_type == "worker" else []

    def require_creator(self, what: str) -> None:
        """Raise FailedPreconditionError unless this task may set `what` without an optimizer."""
        if not self.creates:
            raise FailedPreconditionError(
                f"{what} was set in {self.name}, but only the chief sets the values of "
                "variables; do it where strategy.extended.should_checkpoint is true",
                task=self.name,
            )

    def require_trainer(self) -> None:
        """Raise FailedPreconditionError unless this task may take steps."""
        if not self.trains:
            raise FailedPreconditionError(
                f"{self.name} takes no steps, which others would not know of; only the "
                "chief and workers train. Call optimizer.step() there only",
                task=self.name,
            )

    @property
    def role(self) -> Role:
        """The role that servers are told."""
        if self.task_type == "evaluator":
            return ROLE_EVALUATOR
        return ROLE_CHIEF if self.creates else ROLE_WORKER

    @cached_property
    def number(self) -> int:
        """Its place among the tasks that do the same work. Spec: MWU-3."""
        return id_in_cluster(self.cluster, self.task_type, self.task_id)

    @cached_property
    def num_workers(self) -> int:
        """How many tasks do the same work. Spec: MWU-2."""
        return worker_count(self.cluster, self.task_type)

    @cached_property
    def num_training_tasks(self) -> int:
        """How many tasks train; this need not be one of them."""
        return worker_count(self.cluster, self.creator[0])

    @property
    def num_servers(self) -> int:
        """How many parameter servers there are."""
        return self.cluster.num_tasks("ps")

    @property
    def server_addresses(self) -> list[str]:
        """The address of each parameter server, or those of its replicas with commas between.

        Raises:
            InvalidArgumentError: The indices of the ps job have gaps.
        """
        indices = list(self.cluster.task_indices("ps"))
        if indices != list(range(len(indices))):
            raise InvalidArgumentError(
                f"the ps job has the tasks {indices}; number them from 0 without gap"
            )
        return [self.cluster.task_address("ps", index) for index in indices]


def _require_port(task: str, address: str) -> None:
    """Check an address at once, of which connecting would complain a minute later."""
    host, _, port = address.rpartition(":")
    named = port.isdecimal() and 0 < int(port) < 1 << 16
    if not host or "//" in host or not named:
        raise InvalidArgumentError(
            f"the address of {task} is {address!r}; write it as 'host:port', with the port at "
            "which the server listens"
        )
