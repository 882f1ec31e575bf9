"""What a `TPUStrategy` is made of, in its program and on each of its hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stratagem._core.options import InputContext
from stratagem._core.variables import Variable
from stratagem._input.iterator import DistributedIterator
from stratagem._input.options import AutoShardPolicy, InputOptions, InputReplicationMode
from stratagem._local.mirrored import CopiesExtended
from stratagem._strategies.multi_step import MultiStepContext
from stratagem._strategies.strategy import Strategy
from stratagem._tpu.cores import Cores, host_cpu
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.v1.cluster_pb2 import ConfigProto


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
