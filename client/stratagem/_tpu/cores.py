"""The cores of a strategy, and what a `TPUStrategy` is made of in its program and on each host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch

from stratagem._cluster.tasks import Tasks
from stratagem._core.device_names import DeviceName, list_logical_devices
from stratagem._core.distributed_values import components
from stratagem._core.nests import leaves
from stratagem._core.options import InputContext
from stratagem._core.reduction import default_cross_device_ops
from stratagem._core.variables import Variable
from stratagem._input.iterator import DistributedIterator
from stratagem._input.options import AutoShardPolicy, InputOptions, InputReplicationMode
from stratagem._local.mirrored import CopiesExtended, LocalReplicas, ReplicaGroup
from stratagem._multi_worker.meeting import WorkerPlace
from stratagem._strategies.multi_step import GivesInputs, MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.v1.cluster_pb2 import ConfigProto

Recipe = Callable[[Strategy], DistributedIterator]
"""Opens a dataset on a host, given the strategy there."""


class HostsDataset:
    """A dataset of which each host reads its own share."""

    def __init__(self, strategy: Strategy, recipe: Recipe) -> None:
        self._strategy = strategy
        self._recipe = recipe

    def __iter__(self) -> HostsIterator:
        """Return an iterator from its beginning, for a loop of steps."""
        return HostsIterator(self._strategy, self._recipe)


class HostsIterator:
    """Stands, in the program, for the iterators of all hosts.

    It was started again as often as `passes` says.
    """

    def __init__(self, strategy: Strategy, recipe: Recipe) -> None:
        self.strategy = strategy
        self.recipe = recipe
        self.passes = 0

    def initialize(self) -> list[Any]:
        """Start again from the beginning; return the operations to run in a graph: none."""
        self.passes += 1
        return []

    @property
    def initializer(self) -> list[Any]:
        """What `initialize` returns, after calling it."""
        return self.initialize()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> NoReturn:
        """Raise InvalidArgumentError: the data are on the hosts."""
        raise InvalidArgumentError(
            "Hosts read their data themselves, so there is no input to be had here; pass the "
            "iterator to experimental_run_steps_on_iterator, or run_steps_on_dataset"
        )

    def get_next(self) -> NoReturn:
        """Raise the error of `next`."""
        next(self)


class HostInput:
    """A host's own iterator, which is opened when a step first asks for input."""

    def __init__(self, strategy: Strategy, recipe: Recipe) -> None:
        self._strategy = strategy
        self._recipe = recipe
        self._iterator: DistributedIterator | None = None

    def restart(self) -> None:
        self._iterator = None

    def get_next(self) -> Any:
        """Return the input of the next step, for the cores of this host."""
        if self._iterator is None:
            self._iterator = self._recipe(self._strategy)
        return self._iterator.get_next()


class StaticShapes:
    """Checks that all inputs of an iterator have the same shapes. Spec: TPU-9."""

    def __init__(self, iterator: GivesInputs) -> None:
        self._iterator = iterator
        self._shapes: list[torch.Size] | None = None

    def get_next(self) -> Any:
        """Return the input of the next step.

        Raises InvalidArgumentError if a tensor has another shape than that of another core, or of
        the step before.
        """
        inputs = self._iterator.get_next()
        for core in zip(*map(_parts, leaves(inputs)), strict=True):
            shapes = [x.shape for x in core if isinstance(x, torch.Tensor)]
            self._require_usual(shapes)
        return inputs

    def _require_usual(self, shapes: list[torch.Size]) -> None:
        expected = shapes if self._shapes is None else self._shapes
        for shape, usual in zip(shapes, expected, strict=True):
            if shape != usual:
                raise InvalidArgumentError(
                    "A loop on accelerators needs inputs with fully defined shapes, but one has "
                    f"{tuple(shape)} where others have {tuple(usual)}; leave an incomplete last "
                    "batch out, for instance by DataLoader(..., drop_last=True)"
                )
        self._shapes = expected


def _parts(leaf: Any) -> tuple[Any, ...]:
    parts = components(leaf)
    return (leaf,) if parts is None else parts


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
    def in_order(
        cls, job: str, tasks: Sequence[int], cores: Sequence[str], num_cores: int | None = None
    ) -> Topology:
        """Put hosts and cores in order; all cores are used if no number is given."""
        count = len(tasks) * len(cores) if num_cores is None else num_cores
        return cls(job, tuple(sorted(tasks, key=str)), tuple(sorted(cores)), count)

    @classmethod
    def of_this_process(cls, num_cores: int | None) -> Topology:
        """Return this process as the only host."""
        return cls.in_order(THIS_PROCESS, [0], cores_here(), num_cores)

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


class CoresExtended(CopiesExtended):
    """The `extended` of a `TPUStrategy`, whose cores are found for it."""

    _cluster_resolver: ClusterResolver

    def __init__(
        self,
        container_strategy: Strategy,
        find_cores: Callable[[CopiesExtended], Cores],
        resolver: ClusterResolver,
        steps_per_run: int,
    ) -> None:
        # The cores keep this object, and use it once it is made.
        self._cores = find_cores(self)
        super().__init__(container_strategy, self._cores.replicas, resolver)
        self._steps_per_run = steps_per_run

    def connect(self) -> None:
        """Connect to the hosts if they are elsewhere, anew if one was lost."""
        self._cores.connect()

    def disconnect(self) -> None:
        """End the session with the hosts, if they are elsewhere."""
        self._cores.disconnect()

    @property
    def steps_per_run(self) -> int:
        """How many steps a loop is to have. Spec: TPU-1, TPU-25."""
        return self._steps_per_run

    @property
    def calls_per_host(self) -> int:
        """How many calls each host was sent since it was connected.

        A loop is one call, however many steps it has. In this process there are none.
        """
        return self._cores.calls

    @property
    def num_hosts(self) -> int:
        """How many hosts there are. Spec: TPU-3."""
        return len(self._cores.topology.tasks)

    @property
    def num_replicas_per_host(self) -> int:
        """How many cores each host has, used or not. Spec: TPU-3, TPU-25."""
        return len(self._cores.topology.cores)

    def get_host_cpu_device(self, host_id: int) -> str:
        """Return the name of a host's CPU.

        Args:
            host_id: Index of its task.

        Spec: TPU-24.
        """
        return host_cpu(self._cores.job, host_id)

    @property
    def worker_devices(self) -> Sequence[str]:
        return self._cores.devices

    @property
    def parameter_devices(self) -> Sequence[str]:
        return self._cores.devices

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        return (self.get_host_cpu_device(0),)

    @property
    def experimental_between_graph(self) -> bool:
        return False

    @property
    def experimental_require_static_shapes(self) -> bool:
        return True

    def _update_config_proto(self, config: ConfigProto) -> None:
        """Spec: TPU-23."""
        config.isolate_session_state = True
        cluster = self._cluster_resolver.cluster_spec()
        if cluster:
            config.cluster_def.CopyFrom(cluster.as_cluster_def())

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        return self._cores.run(fn, args, kwargs)

    def _experimental_run_steps_on_iterator(
        self,
        fn: Callable[[MultiStepContext, Any], Any],
        iterator: DistributedIterator,
        iterations: int,
        initial_loop_values: Any,
    ) -> MultiStepContext:
        return self._cores.loop(fn, iterator, iterations, initial_loop_values)

    def _distribute_dataset(
        self, dataset: Any, options: InputOptions | None, auto_shard_policy: AutoShardPolicy | int
    ) -> Any:
        def there(strategy: Strategy) -> Any:
            return iter(
                strategy.experimental_distribute_dataset(dataset, options, auto_shard_policy)
            )

        distribute = super()._distribute_dataset
        here = partial(distribute, dataset, options, auto_shard_policy)
        return self._cores.distribute(here, there)

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
    ) -> Any:
        def there(strategy: Strategy) -> Any:
            return iter(strategy.distribute_datasets_from_function(dataset_fn, options))

        distribute = super()._distribute_datasets_from_function
        return self._cores.distribute(partial(distribute, dataset_fn, options), there)


class CoresStrategy(Strategy):
    """A `TPUStrategy` in the program that made it, and on each of its hosts."""

    @property
    def extended(self) -> CoresExtended:
        """Methods for libraries and for authors of strategies. Spec: STR-2, TPU-25."""
        assert isinstance(self._extended, CoresExtended)
        return self._extended

    @property
    def steps_per_run(self) -> int:
        """How many steps a loop is to have. Spec: TPU-1."""
        return self.extended.steps_per_run

    def experimental_initialize(self) -> list[Any]:
        """Connect to the hosts, anew if one was lost.

        Otherwise they are connected when they are needed first.

        Returns:
            The operations to run in a graph: none.

        Raises:
            UnavailableError: A host cannot be reached.

        Spec: TPU-10, TPU-25.
        """
        self.extended.connect()
        return []

    def experimental_finalize(self) -> list[Any]:
        """End the session with the hosts, which forget everything.

        What they have computed stays here, and is there again in the next session.

        Returns:
            The operations to run in a graph: none.

        Spec: TPU-10, TPU-25.
        """
        self.extended.disconnect()
        return []

    def _dataset_iterator(self, dataset: Any) -> Any:
        def opened(strategy: Strategy) -> Any:
            return Strategy._dataset_iterator(strategy, dataset)

        return self.extended._cores.open_input(opened)

    def _input_fn_iterator(
        self, input_fn: Callable[[InputContext], Any], replication_mode: InputReplicationMode
    ) -> Any:
        def opened(strategy: Strategy) -> Any:
            return Strategy._input_fn_iterator(strategy, input_fn, replication_mode)

        return self.extended._cores.open_input(opened)

    def _class_on_hosts(self) -> type[CoresStrategy]:
        """Return the class that the strategy has on its hosts.

        It is asked for, since the public class sends itself there.
        """
        raise NotImplementedError
