"""The resolver of a job step of the workload manager Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

import torch

from stratagem._cluster.tasks import ClusterSpec
from stratagem.cluster_resolver._resolvers import ClusterResolver
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError

# A host without brackets, or with one pair of them at its end.
_HOSTS = re.compile(r"(?P<prefix>[^,\[\]]*)(?:\[(?P<ranges>[^\[\]]+)\])?(?:,|$)")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
_TASKS = re.compile(r"(?P<tasks>\d+)(?:\(x(?P<times>\d+)\))?")


class SlurmClusterResolver(ClusterResolver):
    """A resolver that reads what Slurm tells the processes of a job step.

    Tasks go to the hosts in the order of their names, and so do Slurm's own numbers of tasks if
    `srun` distributes them by blocks. The tasks of one host listen on successive ports and get
    successive GPUs. It works without GPUs too.

    Args:
        jobs: Number of tasks by job name; by default all are workers. The jobs take the tasks in
            the order of their names.
        port_base: Port of the first task of each host.
        gpus_per_node: GPUs of each host; by default those that this process sees.
        gpus_per_task: GPUs for each task; by default the host's are divided among the tasks of the
            host that has most.
        tasks_per_node: Number of tasks on every host, or a mapping from host to number; by default
            what Slurm says.
        auto_set_gpu: Whether `cluster_spec` shows this process its own GPUs only, by
            CUDA_VISIBLE_DEVICES. Call it before CUDA is first used.
        rpc_layer: Protocol in front of addresses.

    Raises:
        FailedPreconditionError: The process does not run in a job step of Slurm, or that has
            another number of tasks or too few GPUs.
        InvalidArgumentError: What Slurm says cannot be read.

    Spec: RES-14 to RES-17, ODD-18.
    """

    def __init__(  # noqa: PLR0913 - the signature of tf.distribute
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        super().__init__()
        self.rpc_layer = rpc_layer
        self._rank = int(_slurm_variable("PROCID"))
        self._jobs = jobs or {"worker": int(_slurm_variable("STEP_NUM_TASKS"))}
        self._tasks_by_host = _tasks_by_host(tasks_per_node)
        self._port_base = port_base
        self._auto_set_gpu = auto_set_gpu
        most = max(self._tasks_by_host.values())
        on_node = torch.cuda.device_count() if gpus_per_node is None else gpus_per_node
        self._gpus_per_node = on_node
        self._gpus_per_task = on_node // most if gpus_per_task is None else gpus_per_task
        self._check(most)

    def _check(self, most_tasks: int) -> None:
        needed = most_tasks * self._gpus_per_task
        if needed > self._gpus_per_node:
            raise FailedPreconditionError(
                f"Requested more GPUs per node than available: {most_tasks} tasks with "
                f"{self._gpus_per_task} GPUs each need {needed}, but a node has "
                f"{self._gpus_per_node}"
            )
        requested, assigned = (sum(self._jobs.values()), sum(self._tasks_by_host.values()))
        if requested != assigned:
            raise FailedPreconditionError(
                f"Requested {requested} tasks but only {assigned} were assigned; make "
                f"the numbers in jobs={dict(self._jobs)} and srun --ntasks agree"
            )

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster, and find this process's own task and GPUs.

        Spec: RES-15.
        """
        addresses = iter(self._addresses())
        cluster = {
            job: [next(addresses) for _ in range(self._jobs[job])] for job in sorted(self._jobs)
        }
        self._task_type, self._task_id = self._own_task()
        if self._auto_set_gpu and self._gpus_per_node:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._own_gpus()
        return ClusterSpec(cluster)

    def _addresses(self) -> list[str]:
        return [f"{host}:{self._port_base + position}" for host, position in self._positions()]

    def _positions(self) -> list[tuple[str, int]]:
        """Return the host of each task, and its position there."""
        return [
            (host, position)
            for host in sorted(self._tasks_by_host)
            for position in range(self._tasks_by_host[host])
        ]

    def _own_task(self) -> tuple[str, int]:
        index = self._rank
        for job in sorted(self._jobs):
            if index < self._jobs[job]:
                return job, index
            index -= self._jobs[job]
        raise FailedPreconditionError(
            f"SLURM_PROCID is {self._rank}, but the jobs {dict(self._jobs)} have "
            "fewer tasks; does this process run in the same job step?"
        )

    def _own_gpus(self) -> str:
        _, position = self._positions()[self._rank]
        first = position * self._gpus_per_task
        return ",".join(str(first + gpu) for gpu in range(self._gpus_per_task))

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return job and index of this process; None before `cluster_spec` is called.

        Spec: RES-17.
        """
        return self.task_type, self.task_id

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default of this one; "" if not known.

        Raises:
            InvalidArgumentError: The cluster has no such task.

        Spec: RES-17.
        """
        return self._own_master(task_type, task_id, rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> Mapping[str, int]:
        """Return the number of GPUs of each task. Spec: RES-17."""
        return {"GPU": self._gpus_per_task}


def _tasks_by_host(tasks_per_node: int | Mapping[str, int] | None) -> Mapping[str, int]:
    if isinstance(tasks_per_node, Mapping):
        return tasks_per_node
    hosts = expand_hostlist(_slurm_variable("STEP_NODELIST"))
    if tasks_per_node is not None:
        return dict.fromkeys(hosts, tasks_per_node)
    counts = expand_tasks_per_node(_slurm_variable("STEP_TASKS_PER_NODE"))
    return dict(zip(hosts, counts, strict=False))


def _slurm_variable(name: str) -> str:
    variable = f"SLURM_{name}"
    if variable not in os.environ:
        raise FailedPreconditionError(
            f"{variable} not found in environment. Not running inside a Slurm step? "
            "Start the program by srun"
        )
    return os.environ[variable]


def expand_hostlist(hostlist: str) -> list[str]:
    """Return the hosts of a list such as "n[1-2,04],m3", in its order.

    Numbers are as wide as the first of their range. Spec: RES-18.

    Raises:
        InvalidArgumentError: The list cannot be read.
    """
    hosts: list[str] = []
    position = 0
    while position < len(hostlist):
        part = _HOSTS.match(hostlist, position)
        if part is None or not part.group().strip(","):
            raise _unreadable("hostlist", hostlist)
        hosts += _hosts(part["prefix"], part["ranges"], hostlist)
        position = part.end()
    return hosts


def _hosts(prefix: str, ranges: str | None, hostlist: str) -> Iterator[str]:
    if ranges is None:
        yield prefix
        return
    for part in ranges.split(","):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            raise _unreadable("hostlist", hostlist)
        first, last = numbers["first"], numbers["last"] or numbers["first"]
        for number in range(int(first), int(last) + 1):
            yield f"{prefix}{number:0{len(first)}}"


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Return the numbers of tasks of a list such as "3(x2),1": 3, 3 and 1.

    Spec: RES-18.

    Raises:
        InvalidArgumentError: The list cannot be read.
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        tasks = _TASKS.fullmatch(part)
        if tasks is None:
            raise _unreadable("tasks-per-node list", tasks_per_node)
        counts += [int(tasks["tasks"])] * int(tasks["times"] or 1)
    return counts


def _unreadable(what: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Invalid {what} format {text!r}; Slurm writes for instance 'n[1-2,4],m3' and '3(x2),4'"
    )
