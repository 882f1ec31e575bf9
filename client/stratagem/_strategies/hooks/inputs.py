"""How a strategy divides its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratagem._core import device_names
from stratagem._core.options import InputContext
from stratagem._input.per_replica_values import per_replica_values
from stratagem._strategies.hooks.replicas import ReplicaHooks

if TYPE_CHECKING:
    from stratagem._core.options import ValueContext
    from stratagem._input.options import AutoShardPolicy, InputOptions
    from stratagem._input.sharding import InputWorker


class InputHooks(ReplicaHooks):
    """Which share of the data each replica reads."""

    def _input_context(self) -> InputContext:
        """Return which share of the data this process reads; decided only here."""
        return InputContext(num_replicas_in_sync=self._num_replicas_in_sync)

    def _input_worker(self) -> InputWorker:
        # Late, here and below: not every program has a strategy read its data.
        from stratagem._input.sharding import InputWorker

        local = self.worker_devices[: self._num_local_replicas]
        devices = tuple(device_names.torch_device(device) for device in local)
        return InputWorker(self._input_context(), devices)

    def _input_left(self, here: bool) -> bool:
        """Return whether any worker in sync has input for one more step.

        Each asks for every step, in the same order. One without input then takes
        part with tensors of 0 rows. Spec: INP-27.

        Args:
            here: Whether this one has.
        """
        return here

    def _distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None,
        auto_shard_policy: AutoShardPolicy | int,
    ) -> Any:
        from stratagem._input.dataset import DistributedDataset
        from stratagem._input.numpy_dataset import NumpyDataset
        from stratagem._input.pipeline import splitting_pipeline

        if isinstance(dataset, NumpyDataset):
            dataset = dataset.batched(self._num_replicas_in_sync)
        worker = self._input_worker()
        pipeline = splitting_pipeline(dataset, worker, options, auto_shard_policy)
        return DistributedDataset(self._container_strategy(), pipeline)

    def _distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[InputContext], Any],
        options: InputOptions | None,
    ) -> Any:
        from stratagem._input.dataset import DistributedDataset
        from stratagem._input.pipeline import function_pipeline

        pipeline = function_pipeline(dataset_fn, self._input_worker(), options)
        return DistributedDataset(self._container_strategy(), pipeline)

    def _distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        return per_replica_values(
            value_fn,
            self._first_replica_id,
            self._num_local_replicas,
            self._num_replicas_in_sync,
        )
