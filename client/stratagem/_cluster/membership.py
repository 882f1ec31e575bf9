"""Which task of a parameter-server cluster this process is."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._cluster.roles import id_in_cluster, is_chief, validated, worker_count
from stratagem._cluster.spec import ClusterSpec
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.replica_addresses import replica_addresses
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF, ROLE_EVALUATOR, ROLE_WORKER, Role

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
    def of(cls, cluster: ClusterSpec, task_type: str | None, task_id: int | None) -> Membership:
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

    @property
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

    @property
    def number(self) -> int:
        """Its place among the tasks that do the same work. Spec: MWU-3."""
        return id_in_cluster(self.cluster, self.task_type, self.task_id)

    @property
    def num_workers(self) -> int:
        """How many tasks do the same work. Spec: MWU-2."""
        return worker_count(self.cluster, self.task_type)

    @property
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
