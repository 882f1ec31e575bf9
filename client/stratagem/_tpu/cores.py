"""The cores of a strategy: accelerators of this process, or of hosts elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from stratagem._core.values.cross_device_ops import default_cross_device_ops
from stratagem._local.extended import CopiesExtended
from stratagem._local.replica_group import LocalReplicas, ReplicaGroup
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._tpu.inputs import Recipe, StaticShapes
from stratagem._tpu.topology import HostPlan, Topology
from stratagem_proto.errors import UnimplementedError

LoopStep = Callable[[MultiStepContext, Any], Any]
"""What a loop calls, with its context and one input."""


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
