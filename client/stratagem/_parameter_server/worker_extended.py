"""The replicas of one worker among several that run the same program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from stratagem._cluster.tasks import Membership
from stratagem._core import device_names
from stratagem._core.contexts import entered
from stratagem._core.device_names import DeviceName
from stratagem._core.options import CommunicationOptions, InputContext, ReduceOp
from stratagem._core.reduction import Axis
from stratagem._core.variables import Variable
from stratagem._hosting.other_steps import workers
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._parameter_server.coordination import Coordination
from stratagem._strategies.extended import StrategyExtended
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.cluster_pb2 import ConfigProto

if TYPE_CHECKING:
    from stratagem._input.sharding import InputWorker
    from stratagem._strategies.strategy import Strategy

_SEED_NAME = "stratagem/shuffling_seed"


class WorkerExtended(StrategyExtended):
    """Runs and reduces the replicas of this process, and divides its input.

    Args:
        container_strategy: The strategy.
        membership: Which task of the cluster this process is.
        devices: Full names of the devices of this worker's replicas.
        synchronous: Whether the workers take their steps together, so that their replicas are in
            sync.
        coordinated: Whether a coordinator has functions run here.

    Spec: PS1-4, PS1-7 to PS1-9.
    """

    def __init__(
        self,
        container_strategy: Strategy,
        membership: Membership,
        devices: Sequence[str],
        synchronous: bool,
        coordinated: bool,
    ) -> None:
        super().__init__(container_strategy)
        self._default_device = membership.name
        self._membership = membership
        self._devices = tuple(devices)
        self._synchronous = synchronous
        self._coordination = Coordination(self._container_strategy, coordinated)
        has_others = membership.trains and membership.num_workers > 1
        workers.add(container_strategy, has_others)
        self._seed: Variable | None = None
        self._loaders, self._datasets = count(), count()

    @property
    def experimental_between_graph(self) -> bool:
        return True

    # The task.

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self._devices

    @property
    def experimental_should_init(self) -> bool:
        return self._membership.is_chief

    @property
    def should_checkpoint(self) -> bool:
        return self._membership.is_chief

    @property
    def should_save_summary(self) -> bool:
        return self._membership.is_chief

    def _update_config_proto(self, config: ConfigProto) -> None:
        # Workers share the variables on the servers, and do not call each other.
        config.isolate_session_state = False
        member = self._membership
        coordinated = self._coordination.active
        filters = member.coordinated_filters if coordinated else member.session_filters
        config.device_filters[:] = filters

    # Replicas.

    def _replica_devices(self) -> Sequence[Any]:
        return [[device_names.current()]]

    @property
    def _num_replicas_in_sync(self) -> int:
        workers = self._membership.num_workers if self._synchronous else 1
        return workers * self._num_local_replicas

    @property
    def _num_local_replicas(self) -> int:
        return len(self._devices)

    @property
    def _first_replica_id(self) -> int:
        number = self._membership.number if self._synchronous else 0
        return number * self._num_local_replicas

    # Input.

    def _input_context(self) -> InputContext:
        in_sync = self._num_replicas_in_sync
        if self._coordination.active:
            return InputContext(num_replicas_in_sync=in_sync)
        return InputContext(self._membership.num_workers, self._membership.number, in_sync)

    def _input_worker(self) -> InputWorker:
        worker = super()._input_worker()
        return replace(worker, seed=self._shuffling_seed, number=next(self._datasets))

    def _shuffling_seed(self) -> int:
        """Return the seed of the next loader, which is the same on all workers.

        It is the chief's, which a worker that comes back finds again, and the number of the loader,
        since one that is made anew for each epoch is to have another order in each.
        """
        if self._seed is None:
            drawn = torch.initial_seed() % 2**63
            with entered(self._container_strategy()):
                self._seed = Variable(drawn, trainable=False, name=_SEED_NAME)
        return (int(self._seed.numpy()) + next(self._loaders)) % 2**63

    def _distribute_dataset(
        self, dataset: Any, options: InputOptions | None, auto_shard_policy: AutoShardPolicy | int
    ) -> Any:
        built = super()._distribute_dataset(dataset, options, auto_shard_policy)
        if not self._coordination.is_off_workers:
            return built
        distribute = self._container_strategy().experimental_distribute_dataset
        build = partial(distribute, options=options, auto_shard_policy=auto_shard_policy)
        return self._coordination.unbuilt(build, dataset)

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
    ) -> Any:
        if not self._coordination.is_off_workers:
            return super()._distribute_datasets_from_function(dataset_fn, options)
        distribute = self._container_strategy().distribute_datasets_from_function
        return self._coordination.unbuilt(partial(distribute, options=options), dataset_fn)

    # Values.

    def _reduce(self, reduce_op: ReduceOp, value: Any) -> Any:
        self._coordination.warn_off_workers("reduce")
        return super()._reduce(reduce_op, value)

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        self._coordination.warn_off_workers("reduce")
        return super()._reduce_axes(reduce_op, value, axis)

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        self._require_own(destinations)
        return self._reduce_nest(reduce_op, value, destinations)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        self._require_own(destinations)
        return self._place_value(tensor, destinations)

    def _require_own(self, destinations: Any) -> None:
        """Check that values go to no other worker."""
        if not isinstance(destinations, str):
            return
        device, own = DeviceName.parse(destinations), self._membership
        if device.job == own.task_type and device.task not in (None, own.task_id):
            raise InvalidArgumentError(
                f"Cannot reduce to another worker: {destinations!r} is not a device of "
                f"{own.name}; reduce to a device of this worker, and share the result "
                "by a variable"
            )
