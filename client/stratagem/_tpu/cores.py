"""The cores of a strategy: accelerators of this process, or of hosts elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._cluster.tasks import Tasks
from stratagem._core.device_names import DeviceName, list_logical_devices
from stratagem._core.reduction import default_cross_device_ops
from stratagem._local.mirrored import CopiesExtended, LocalReplicas, ReplicaGroup
from stratagem._multi_worker.place import WorkerPlace
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._tpu.inputs import Recipe, StaticShapes
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

THIS_PROCESS = "localhost"
"""The job of a host that is this process."""

LoopStep = Callable[[MultiStepContext, Any], Any]
"""What a loop calls, with its context and one input."""


@dataclass(frozen=True)
class Topology:
    """Hosts whose accelerators are the cores of a strategy, of which the first ones are used.

    Hosts and cores are in the order of their names as strings. Tasks are indices of hosts, and
    cores are named as in "GPU:0".

    Raises:
        InvalidArgumentError: There are fewer cores, or hosts would use different numbers of them.
    """

    job: str
    tasks: tuple[int, ...]
    cores: tuple[str, ...]
    num_cores: int

    @classmethod
    def of(
        cls, job: str, tasks: Sequence[int], cores: Sequence[str], num_cores: int | None = None
    ) -> Topology:
        """Put hosts and cores in order; all cores are used if no number is given."""
        count = len(tasks) * len(cores) if num_cores is None else num_cores
        return cls(job, tuple(sorted(tasks, key=str)), tuple(sorted(cores)), count)

    @classmethod
    def of_this_process(cls, num_cores: int | None) -> Topology:
        """Return this process as the only host."""
        return cls.of(THIS_PROCESS, [0], cores_here(), num_cores)

    def __post_init__(self) -> None:
        each, have = len(self.cores), len(self.cores) * len(self.tasks)
        if not 1 <= self.num_cores <= have:
            raise InvalidArgumentError(
                f"num_cores is {self.num_cores}, but {len(self.tasks)} host(s) with "
                f"{', '.join(self.cores)} have {have}; ask for at most as many"
            )
        if self.num_cores > each and self.num_cores % each:
            raise InvalidArgumentError(
                f"num_cores is {self.num_cores}, but hosts have {each} cores each, and "
                "all use equally many; ask for a multiple, or for some of one host"
            )

    @property
    def devices(self) -> tuple[str, ...]:
        """Full names of the cores that are used. Spec: TPU-4."""
        names = [
            f"/job:{self.job}/replica:0/task:{task}/device:{core}"
            for task in self.tasks
            for core in self.cores
        ]
        return tuple(names[: self.num_cores])

    @property
    def used_tasks(self) -> tuple[int, ...]:
        """The indices of the hosts whose cores are used, in order."""
        return self.tasks[: -(-self.num_cores // len(self.cores))]

    @property
    def used_cores(self) -> tuple[str, ...]:
        """The cores that are used of each of these hosts."""
        return self.cores[: self.num_cores]


def host_cpu(job: str, host_id: int) -> str:
    """Return the name of the CPU of a host. Spec: TPU-24."""
    if job == THIS_PROCESS:
        return "/replica:0/task:0/device:CPU:0"
    return f"/job:{job}/task:{host_id}/device:CPU:0"


def cores_here() -> tuple[str, ...]:
    """Return the accelerators of this process: GPUs, or without any logical CPUs."""
    found = list_logical_devices("GPU") or list_logical_devices("CPU")
    names = map(DeviceName.parse, found)
    return tuple(f"{name.kind}:{name.index}" for name in names)


@dataclass(frozen=True)
class HostPlan:
    """What all hosts are told of their strategy.

    They find each other at the meeting point, a "host:port"; "" if there is one host alone.
    """

    topology: Topology
    steps_per_run: int
    cluster: Mapping[str, Tasks]
    meeting_point: str

    def place_of(self, task: int) -> WorkerPlace:
        """Return the place of a host among those that step together."""
        used = self.topology.used_tasks
        names = tuple(f"/job:{self.topology.job}/replica:0/task:{one}" for one in used)
        return WorkerPlace(names, used.index(task), self.meeting_point)

    def devices_of(self, task: int) -> list[str]:
        """Return the full names of the cores that a host uses."""
        name = self.place_of(task).name
        return [f"{name}/device:{core}" for core in self.topology.used_cores]


class Cores(ABC):
    """Runs the replicas of a `TPUStrategy`, whose `extended` owns this."""

    def __init__(self, extended: CopiesExtended, replicas: ReplicaGroup, job: str) -> None:
        self.extended = extended
        self.replicas = replicas
        self.job = job

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """The hosts and their cores."""

    @property
    @abstractmethod
    def devices(self) -> Sequence[str]:
        """Full names of the devices that run replicas."""

    @property
    def calls(self) -> int:
        """How many calls each host was sent since it was connected."""
        return 0

    @abstractmethod
    def plan(self) -> HostPlan:
        """Return what hosts are told of the strategy."""

    def connect(self) -> None:  # noqa: B027 - only hosts elsewhere need it
        """Connect to the hosts, if they are elsewhere."""

    def disconnect(self) -> None:  # noqa: B027 - as above
        """End the session with the hosts, if they are elsewhere."""

    @abstractmethod
    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function once for each core."""

    @abstractmethod
    def loop(
        self, step: LoopStep, iterator: Any, iterations: int, initial_loop_values: Any
    ) -> MultiStepContext:
        """Call a step for several inputs, one after the other."""

    @abstractmethod
    def open_input(self, recipe: Recipe) -> Any:
        """Return an iterator of a dataset, of each host's where it is read there."""

    @abstractmethod
    def distribute(self, here: Callable[[], Any], there: Recipe) -> Any:
        """Return a distributed dataset, read `here` or opened by each host `there`."""


class LocalCores(Cores):
    """Cores of this process; by default all replicas in sync are on them."""

    def __init__(
        self, extended: CopiesExtended, topology: Topology, replicas: ReplicaGroup | None = None
    ) -> None:
        if replicas is None:
            ops = default_cross_device_ops(topology.devices)
            replicas = LocalReplicas(topology.devices, ops)
        super().__init__(extended, replicas, topology.job)
        self._hosts = topology

    @property
    def topology(self) -> Topology:
        return self._hosts

    @property
    def devices(self) -> Sequence[str]:
        return self.replicas.devices

    def plan(self) -> HostPlan:
        raise UnimplementedError("The cores of this process have no hosts to be told")

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self.extended._run_replicas(self.devices, fn, args, kwargs)

    def loop(
        self, step: LoopStep, iterator: Any, iterations: int, initial_loop_values: Any
    ) -> MultiStepContext:
        inputs = StaticShapes(iterator)
        return self.extended._run_steps(step, inputs, iterations, initial_loop_values)

    def open_input(self, recipe: Recipe) -> Any:
        return recipe(self.extended._container_strategy())

    def distribute(self, here: Callable[[], Any], there: Recipe) -> Any:
        return here()
