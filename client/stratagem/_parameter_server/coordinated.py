"""The part of a strategy that knows whether a coordinator has its functions run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stratagem._core.contexts.worker_index import runs_on_a_worker
from stratagem._core.enums import ReduceOp
from stratagem._core.options import InputContext
from stratagem._core.values.reduction import Axis
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.variable import Variable
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._parameter_server.worker_extended import WorkerExtended
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.cluster_pb2 import ConfigProto

_LOG = logging.getLogger("stratagem")


class CoordinatedExtended(WorkerExtended):
    """A `WorkerExtended` whose program may have a `ClusterCoordinator`.

    Functions then run on workers, each of which has all of the data, and here only by
    mistake, or to evaluate.

    Spec: PS2-8, PS2-10 to PS2-13.
    """

    _coordinated = False
    _make_per_worker: Callable[..., Variable] | None = None
    _end_coordination: Callable[[], None] | None = None

    def coordinate(
        self, make_per_worker: Callable[..., Variable], end: Callable[[], None]
    ) -> None:
        """Note that there is a coordinator from now on.

        Args:
            make_per_worker: Makes a variable of which each worker has its own; takes
                the arguments of `Variable`.
            end: Called when the strategy is closed.
        """
        self._coordinated = True
        self._make_per_worker = make_per_worker
        self._end_coordination = end

    def _close(self) -> None:
        super()._close()
        if self._end_coordination is not None:
            self._end_coordination()

    def _create_per_worker(
        self, next_creator: NextCreator, given: dict[str, Any]
    ) -> Variable:
        if self._make_per_worker is None:
            raise InvalidArgumentError(
                f"variable {given['name']!r} is to be a per_worker_variable, but there "
                "are no workers that functions are scheduled on; construct a "
                "ClusterCoordinator with this strategy first"
            )
        return next_creator(**given, make=self._make_per_worker)

    @property
    def _is_off_workers(self) -> bool:
        return self._coordinated and not runs_on_a_worker()

    def _update_config_proto(self, config: ConfigProto) -> None:
        super()._update_config_proto(config)
        if self._coordinated:
            config.device_filters[:] = self._membership.coordinated_filters

    def _input_context(self) -> InputContext:
        if self._coordinated:
            return InputContext(num_replicas_in_sync=self._num_replicas_in_sync)
        return super()._input_context()

    def _distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None,
        auto_shard_policy: AutoShardPolicy | int,
    ) -> Any:
        built = super()._distribute_dataset(dataset, options, auto_shard_policy)
        if not self._is_off_workers:
            return built
        strategy = self._container_strategy()
        distribute = strategy.experimental_distribute_dataset
        return self._unbuilt(partial(distribute, dataset, options, auto_shard_policy))

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None
    ) -> Any:
        if not self._is_off_workers:
            return super()._distribute_datasets_from_function(dataset_fn, options)
        distribute = self._container_strategy().distribute_datasets_from_function
        return self._unbuilt(partial(distribute, dataset_fn, options))

    def _unbuilt(self, build: Callable[[], Any]) -> Any:
        # Late: not every program has a strategy read its data.
        from stratagem._parameter_server.unbuilt_dataset import UnbuiltDataset

        return UnbuiltDataset(self._container_strategy(), build)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self._warn_off_workers("run")
        return super()._call_for_each_replica(fn, args, kwargs)

    def _reduce(self, reduce_op: ReduceOp, value: Any) -> Any:
        self._warn_off_workers("reduce")
        return super()._reduce(reduce_op, value)

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        self._warn_off_workers("reduce")
        return super()._reduce_axes(reduce_op, value, axis)

    def _warn_off_workers(self, method: str) -> None:
        if self._is_off_workers:
            _LOG.warning(
                "`%s` of a ParameterServerStrategy is invoked without using "
                "`ClusterCoordinator.schedule`, so that the coordinator's program does "
                "the work while workers wait; call it in a function that is scheduled",
                method,
            )
