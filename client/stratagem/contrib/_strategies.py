"""The strategies of TensorFlow 1.12, over today's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch

from stratagem._cluster.tasks import ClusterSpec
from stratagem._core.contexts import cross_replica
from stratagem._core.device_names import canonicalize, list_logical_devices, require_local
from stratagem._core.distributed_values import DistributedValues, Mirrored, components
from stratagem._core.options import ReduceOp, RunOptions, VariableAggregation, old_spelling
from stratagem._core.reduction import CrossDeviceOps, combine
from stratagem._input.iterator import InputIterator
from stratagem._local import mirrored, one_copy
from stratagem._parameter_server import strategy as parameter_server
from stratagem._strategies.extended import require_function
from stratagem._strategies.strategy import require_described
from stratagem._tpu import strategy as hosts
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem.contrib._loops import (
    CoresContext,
    MultiStepContext,
    Step,
    UndistributedDataset,
    mapped,
    placed,
    reduced,
    with_all_outputs,
)
from stratagem.contrib._strategy import DistributionStrategy, announce
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.v1.cluster_pb2 import ConfigProto


class OneDeviceStrategy(DistributionStrategy):
    """Everything on one device.

    Args:
        device: The device.
        prefetch_on_device: Accepted and ignored: data are read ahead for GPUs.

    Spec: OD-5 to OD-7.
    """

    @old_spelling("stratagem.OneDeviceStrategy")
    def __init__(self, device: str | torch.device, prefetch_on_device: bool | None = None) -> None:
        super().__init__(one_copy.OneDeviceStrategy(device))

    def _broadcast(self, tensor: Any, destinations: Any) -> Any:
        if destinations is None:
            return tensor
        return placed(self._strategy, tensor, destinations)


class MirroredStrategy(DistributionStrategy):
    """Variables with a copy on each of several devices.

    Args:
        devices: Devices of the towers.
        num_gpus: How many GPUs to use, instead; 0 stands for the CPU, and without either all GPUs
            are used.
        num_gpus_per_worker: Another name of it.
        cross_tower_ops: How values of several devices are brought together.
        prefetch_on_device: Accepted and ignored: data are read ahead for GPUs.
        auto_shard_dataset: Accepted and ignored: there is one worker.

    Raises:
        InvalidArgumentError: The arguments contradict each other, or there is no device. Spec:
            MS-7.
    """

    @old_spelling("stratagem.MirroredStrategy")
    def __init__(
        self,
        devices: Sequence[str | torch.device] | None = None,
        num_gpus: int | None = None,
        num_gpus_per_worker: int | None = None,
        cross_tower_ops: CrossDeviceOps | None = None,
        prefetch_on_device: bool | None = None,
        auto_shard_dataset: bool = False,
    ) -> None:
        if None not in (num_gpus, num_gpus_per_worker):
            raise InvalidArgumentError(
                "You cannot specify both `num_gpus` and `num_gpus_per_worker`: they "
                "are two names of one thing; leave one out"
            )
        self._num_gpus = num_gpus_per_worker if num_gpus is None else num_gpus
        chosen = _mirrored_devices(devices, self._num_gpus)
        super().__init__(mirrored.MirroredStrategy(chosen, cross_tower_ops))

    def _reduced(self, aggregation: VariableAggregation, value: Any, destinations: Any) -> Any:
        if isinstance(value, Mirrored):
            raise InvalidArgumentError(
                f"{value!r} is equal on all towers; there is nothing to reduce"
            )
        return super()._reduced(aggregation, value, destinations)

    @old_spelling("update_config_proto, and MultiWorkerMirroredStrategy,")
    def configure(
        self,
        session_config: ConfigProto | None = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Change a session's configuration to what this strategy needs.

        Args:
            session_config: The configuration; changed in place.
            cluster_spec: The cluster whose devices are to be the towers'.
            task_type: None: this process is the only one.
            task_id: None, likewise.

        Raises:
            InvalidArgumentError: A task is given without a cluster.
            InvalidArgumentError: A cluster is given, but `num_gpus` was not.
            UnimplementedError: A cluster is given: one process does not train on the devices of
                others.

        Spec: MS-8.
        """
        if cluster_spec is None:
            require_described(self._strategy, None, task_type, task_id)
        else:
            require_local(self._devices_of_workers(ClusterSpec(cluster_spec)))
        if session_config is not None:
            updated = self._strategy.update_config_proto(session_config)
            session_config.CopyFrom(updated)

    def _devices_of_workers(self, cluster: ClusterSpec) -> list[str]:
        if self._num_gpus is None:
            raise InvalidArgumentError(
                "`num_gpus` has to be given to the constructor if a cluster is to be "
                "configured, as the other workers' devices are not known otherwise"
            )
        kinds = _gpus(self._num_gpus) or ["CPU:0"]
        return [
            f"/job:{job}/task:{task}/device:{kind}"
            for job in ("chief", "worker")
            if job in cluster.jobs
            for task in cluster.task_indices(job)
            for kind in kinds
        ]


def _mirrored_devices(
    devices: Sequence[str | torch.device] | None, num_gpus: int | None
) -> Sequence[str | torch.device]:
    if devices is None:
        count = len(list_logical_devices("GPU")) if num_gpus is None else num_gpus
        return _gpus(count) or ["CPU:0"]
    if num_gpus is not None:
        raise InvalidArgumentError(
            "Must only specify one of `devices` and `num_gpus`; leave one out"
        )
    if not devices:
        raise InvalidArgumentError(
            "Must specify at least one device; leave `devices` out for all GPUs"
        )
    return devices


def _gpus(count: int) -> list[str]:
    return [f"GPU:{index}" for index in range(count)]


class ParameterServerStrategy(DistributionStrategy):
    """Variables on parameter servers; without a cluster, in this process.

    Args:
        num_gpus_per_worker: The number of towers in this process; 0 stands for one.

    Raises:
        InvalidArgumentError: This process has not as many devices.
    """

    @old_spelling("stratagem.ParameterServerStrategy")
    def __init__(self, num_gpus_per_worker: int = 0) -> None:
        self._towers = num_gpus_per_worker or None
        self._clustered = False
        super().__init__(self._with(SimpleClusterResolver(ClusterSpec({}))))

    def _with(self, resolver: SimpleClusterResolver) -> parameter_server.ParameterServerStrategy:
        return parameter_server.ParameterServerStrategy(
            resolver, num_replicas_per_worker=self._towers
        )

    @old_spelling("update_config_proto, and a cluster resolver,")
    def configure(
        self,
        session_config: ConfigProto | None = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Describe the cluster, before the scope is entered for the first time.

        Args:
            session_config: A session's configuration; changed in place to what the cluster needs.
            cluster_spec: The cluster; once there is one, another is ignored.
            task_type: The job of this process.
            task_id: Its task.

        Raises:
            InvalidArgumentError: The task is not given, or the cluster has no parameter servers.

        Spec: PCF-1, PCF-6, PCF-7.
        """
        if cluster_spec and not self._clustered:
            cluster = ClusterSpec(cluster_spec)
            self._strategy = self._with(
                SimpleClusterResolver(cluster, task_type=task_type, task_id=task_id)
            )
            self._clustered = True
        if session_config is not None and self._clustered:
            updated = self._strategy.update_config_proto(session_config)
            session_config.CopyFrom(updated)

    @property
    def is_single_tower(self) -> bool:
        """Not told by this class. Spec: PS1-13.

        Raises:
            UnimplementedError: Always; `num_towers == 1` says it.
        """
        raise _left_out("is_single_tower", "num_towers == 1")

    @property
    def worker_device_index(self) -> Any:
        """Not told by this class. Spec: PS1-13.

        Raises:
            UnimplementedError: Always; the `tower_id` of the tower context says it.
        """
        raise _left_out("worker_device_index", "the tower_id of the tower context")

    def run_steps_on_dataset(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not done by this class. Spec: PS1-13.

        Raises:
            UnimplementedError: Always; loop around `call_for_each_tower`.
        """
        raise _left_out("run_steps_on_dataset", "a loop around call_for_each_tower")


def _left_out(name: str, instead: str) -> UnimplementedError:
    return UnimplementedError(f"contrib.ParameterServerStrategy has no {name}; use {instead}")


class DefaultStrategy(DistributionStrategy):
    """What is in charge outside of every scope. Spec: DEF-12."""

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with self._strategy.scope(), cross_replica(self._strategy):
            yield

    def _between_towers(self) -> AbstractContextManager[object]:
        return self._opened()

    def _broadcast(self, tensor: Any, destinations: Any) -> Any:
        if destinations is None:
            return tensor
        return super()._broadcast(tensor, destinations)

    @old_spelling("distribute_datasets_from_function")
    def distribute_dataset(self, dataset_fn: Any) -> Any:
        """Return what `dataset_fn` returns."""
        require_function("distribute_dataset", dataset_fn)
        return dataset_fn()


_FIRST = VariableAggregation.ONLY_FIRST_REPLICA


class TPUStrategy(OneDeviceStrategy):
    """Synchronous training on the cores of accelerator hosts.

    Unlike in 1.12, a function runs once for each core: `is_single_tower` tells whether there is but
    one.

    Args:
        tpu_cluster_resolver: Describes the hosts; without any this process is one.
        steps_per_run: How many steps a loop is to have, for those who write loops.
        num_cores: How many cores to use, the first ones; by default all.

    Raises:
        InvalidArgumentError: There are not as many cores.

    Spec: TPU-1 to TPU-24.
    """

    _strategy: hosts.TPUStrategy

    @old_spelling("stratagem.TPUStrategy")
    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver,
        steps_per_run: int,
        num_cores: int | None = None,
    ) -> None:
        strategy = hosts.TPUStrategy(tpu_cluster_resolver, steps_per_run, num_cores)
        DistributionStrategy.__init__(self, strategy)
        self._computations = 0

    # Its cores.

    @property
    @old_spelling("stratagem.TPUStrategy.steps_per_run")
    def steps_per_run(self) -> int:
        """How many steps a loop is to have. Spec: TPU-1."""
        return self._strategy.steps_per_run

    @property
    @old_spelling("extended.num_hosts")
    def num_hosts(self) -> int:
        """How many hosts there are. Spec: TPU-3."""
        return self._strategy.extended.num_hosts

    @property
    @old_spelling("extended.num_replicas_per_host")
    def num_towers_per_host(self) -> int:
        """How many cores each host has. Spec: TPU-3."""
        return self._strategy.extended.num_replicas_per_host

    @old_spelling("extended.get_host_cpu_device")
    def get_host_cpu_device(self, host_id: int) -> str:
        """Return the name of a host's CPU. Spec: TPU-24."""
        return self._strategy.extended.get_host_cpu_device(host_id)

    @old_spelling("update_config_proto")
    def configure(
        self,
        session_config: ConfigProto | None = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Change a session's configuration to what the hosts need.

        Args:
            session_config: The configuration; changed in place.
            cluster_spec: None, or what the resolver says: it describes the cluster.
            task_type: None, likewise.
            task_id: None, likewise.

        Raises:
            InvalidArgumentError: The resolver says something else.

        Spec: TPU-23.
        """
        require_described(self._strategy, cluster_spec, task_type, task_id)
        if session_config is not None:
            updated = self._strategy.update_config_proto(session_config)
            session_config.CopyFrom(updated)

    @old_spelling("TPUStrategy.experimental_initialize")
    def initialize(self) -> None:
        """Connect to the hosts, anew if one was lost.

        Raises:
            UnavailableError: A host cannot be reached.

        Spec: TPU-10.
        """
        self._strategy.extended.connect()

    @old_spelling("TPUStrategy.experimental_finalize")
    def finalize(self) -> None:
        """End the session with the hosts, which forget everything. Spec: TPU-10."""
        self._strategy.extended.disconnect()

    # What runs on them.

    @contextmanager
    def _computation(self) -> Iterator[None]:
        """Scope of what the cores do, as opposed to what is made of their results."""
        self._computations += 1
        try:
            yield
        finally:
            self._computations -= 1

    def _run_towers(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions,
    ) -> Any:
        """Spec: TPU-7."""
        with self._computation():
            return self._strategy.run(self._announcing(fn), args, kwargs, options)

    def _run_steps(
        self, step: Step, iterator: InputIterator, iterations: int, initial_loop_values: Any
    ) -> MultiStepContext:
        """Spec: TPU-9, MSC-8."""
        run = self._strategy.extended.experimental_run_steps_on_iterator
        with self._computation():
            context = run(self._announcing(step), iterator, iterations, initial_loop_values)
        return CoresContext(context, self._strategy.num_replicas_in_sync)

    def _announcing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is found in a scope of this strategy on hosts too."""

        def announced(*args: Any, **kwargs: Any) -> Any:
            announce(self)
            return function(*args, **kwargs)

        return announced

    def _distributed_dataset(self, dataset_fn: Callable[[], Any]) -> Any:
        """Spec: TPU-8."""
        return UndistributedDataset(self._strategy, dataset_fn)

    # Values.

    def _reduced(self, aggregation: VariableAggregation, value: Any, destinations: Any) -> Any:
        if not self._computations:
            return self._reduced_on_host(aggregation, value, destinations)
        several_hosts = self._strategy.extended.num_hosts > 1
        if several_hosts and aggregation is _FIRST:
            raise UnimplementedError(
                f"Cores of several hosts only support sum & mean, not {aggregation!r}: the first "
                "tower runs on another host; reduce what they return, between loops"
            )
        return reduced(self._strategy, aggregation, value, destinations)

    def _reduced_on_host(
        self, aggregation: VariableAggregation, value: Any, destinations: Any
    ) -> Any:
        """Reduce what the cores have returned. Spec: TPU-12."""
        if self._strategy.extended.num_hosts > 1:
            self._require_host(destinations)
        parts = self._each_core(with_all_outputs(value))
        if aggregation is _FIRST:
            total = parts[0]
        else:
            total = combine(ReduceOp.from_variable_aggregation(aggregation), parts)
        return placed(self._strategy, total, destinations)

    def _require_host(self, destinations: Any) -> None:
        host = self._strategy.extended.get_host_cpu_device(0)
        several = isinstance(destinations, list | tuple)
        place = destinations[0] if several and len(destinations) == 1 else destinations
        if not isinstance(place, str) or canonicalize(place) != canonicalize(host):
            raise InvalidArgumentError(
                f"What the cores of several hosts return is reduced to {host}, the CPU "
                f"of the first host, not to {destinations!r}"
            )

    def _each_core(self, value: Any) -> list[Any]:
        parts = value if isinstance(value, list) else components(value)
        if not parts:
            raise InvalidArgumentError(
                f"{value!r} is no list of what each core has; pass what "
                "run_steps_on_dataset or call_for_each_tower returned"
            )
        return list(parts)

    def _unwrapped(self, value: Any) -> list[Any]:
        """Spec: TPU-18."""
        if isinstance(value, list):
            return value
        parts = super()._unwrapped(value)
        names = value._device_names if isinstance(value, DistributedValues) else None
        if names is None:
            return parts
        pairs = sorted(zip(names, parts, strict=True), key=lambda pair: pair[0])
        return [part for _, part in pairs]

    @old_spelling("nothing, as the value is returned as it is,")
    def value_container(self, value: Any) -> Any:
        """Return `value`. Spec: TPU-19."""
        return value

    @old_spelling("a loop")
    def map(
        self, map_over: Iterable[Any], fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call `fn(element, *args, **kwargs)` for each element, on the host's CPU.

        Spec: TPU-20, OD-5.
        """
        self._require_cross_tower("map")
        host = self._strategy.extended.get_host_cpu_device(0)
        return mapped([host], map_over, fn, args, kwargs)
