"""The strategy of TensorFlow 1.12 for accelerator hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from stratagem._core.device_names import canonicalize
from stratagem._core.distributed_values import DistributedValues, components
from stratagem._core.options import ReduceOp, RunOptions, VariableAggregation, old_spelling
from stratagem._core.reduction import combine
from stratagem._input.iterator import InputIterator
from stratagem._strategies.strategy import require_described
from stratagem._tpu import strategy as hosts
from stratagem.cluster_resolver import ClusterResolver
from stratagem.contrib._loops import CoresContext, MultiStepContext, Step, UndistributedDataset
from stratagem.contrib._strategies import OneDeviceStrategy
from stratagem.contrib._strategy import DistributionStrategy, announce
from stratagem.contrib._values import mapped, placed, reduced, with_all_outputs
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError
from stratagem_proto.v1.cluster_pb2 import ConfigProto

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
