"""Mirrored variables on the devices of several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.distributed_variables.mirrored import MirroredVariable
from stratagem._core.enums import ReduceOp
from stratagem._core.options import CommunicationOptions, InputContext
from stratagem._core.tensors.nests import leaves, map_leaves
from stratagem._core.values.cross_device_ops import default_cross_device_ops
from stratagem._core.values.distributed_values import Mirrored, PerReplica
from stratagem._core.values.reduction import Axis
from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.variable import Variable
from stratagem._hosting.elsewhere import MadeElsewhere
from stratagem._hosting.modules.unscoped import workers
from stratagem._input.sharding import InputWorker
from stratagem._local.copies import CopyOperations
from stratagem._local.mirrored import MirroredExtended, mean_of_equals
from stratagem._multi_worker.group import WorkerGroup
from stratagem._multi_worker.hosting import WorkersHosting, follow_chief
from stratagem._multi_worker.reduction import AcrossWorkers
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.v1.cluster_pb2 import ConfigProto

if TYPE_CHECKING:
    from stratagem._strategies.strategy import Strategy

_EQUAL = (Mirrored, MirroredVariable)


class MultiWorkerMirroredExtended(MirroredExtended):
    """The `extended` of a `MultiWorkerMirroredStrategy`.

    Args:
        container_strategy: The strategy.
        group: The workers.
        devices: Full names of the devices of this worker's replicas.
        options: How the workers communicate.
    """

    _cluster_resolver: ClusterResolver
    _elsewhere: MadeElsewhere | None = None

    def __init__(
        self,
        container_strategy: Strategy,
        group: WorkerGroup,
        devices: Sequence[str],
        options: CommunicationOptions,
    ) -> None:
        self._group = group
        self._options = options
        self._default_device = f"{group.place.name}/device:CPU:0"
        self._across = AcrossWorkers(group, len(devices))
        ops = default_cross_device_ops(devices)
        super().__init__(container_strategy, devices, ops)
        if group.size > 1:
            workers.add(container_strategy)

    @property
    def experimental_between_graph(self) -> bool:
        return True

    def _new_hosting(self) -> WorkersHosting:
        return WorkersHosting(
            self,
            self._devices,
            CopyOperations(self._cross_device_ops, self._united),
            self._group,
            self._across,
            self._elsewhere,
        )

    @property
    def should_checkpoint(self) -> bool:
        return self._group.place.is_chief

    @property
    def should_save_summary(self) -> bool:
        return self._group.place.is_chief

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._group.size * len(self._devices)

    @property
    def _num_local_replicas(self) -> int:
        return len(self._devices)

    @property
    def _first_replica_id(self) -> int:
        return self._group.place.rank * len(self._devices)

    def _update_config_proto(self, config: ConfigProto) -> None:
        config.isolate_session_state = False
        if self._group.size > 1:
            del config.device_filters[:]
            config.device_filters.append(self._group.place.name)
            config.experimental.collective_group_leader = self._group.place.tasks[0]

    # Variables start as the chief's.

    def _first_copy(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        first = super()._first_copy(next_creator, **kwargs)
        form = [first.name, str(first.dtype), list(first.shape), first.trainable]
        modes = [str(first.synchronization), str(first.aggregation)]
        self._group.agree("A variable", form + modes)
        follow_chief(self._group, [first.value()])
        return first

    # Values of all workers.

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def _batch_reduce_to(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        flat = [leaf for value, _ in value_destination_pairs for leaf in leaves(value)]
        pack_bytes = self._options.merge(options).bytes_per_pack
        different = [leaf for leaf in flat if not isinstance(leaf, _EQUAL)]
        reduced = iter(self._across.reduced(reduce_op, different, pack_bytes))

        def result(leaf: Any) -> Any:
            equal = isinstance(leaf, _EQUAL)
            return mean_of_equals(reduce_op, leaf) if equal else next(reduced)

        return [
            self._place_value(map_leaves(result, value), destinations)
            for value, destinations in value_destination_pairs
        ]

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        reduced = self._across.reduced_over_axis(reduce_op, leaves(value), axis)
        rest = iter(reduced)
        nest = map_leaves(lambda _: next(rest), value)
        return self._place_value(nest, self._current_device())

    def _gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        return self._across.gathered(values, axis)

    def _lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        return self._across.lengths_before(lengths)

    def _combine_copies(
        self, reduce_op: ReduceOp, copies: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        (total,) = self._across.reduced(reduce_op, [PerReplica(copies)])
        assert isinstance(total, torch.Tensor)
        return total

    def _of_first_replica(self, value: Any) -> Any:
        return self._across.of_chief(value)

    # Input.

    def _input_context(self) -> InputContext:
        place = self._group.place
        return InputContext(place.size, place.rank, self._num_replicas_in_sync)

    def _input_worker(self) -> InputWorker:
        seeds = self._group.exchange("A dataset", torch.initial_seed())
        return replace(super()._input_worker(), seed=lambda: seeds[0])

    def _input_left(self, here: bool) -> bool:
        return any(self._group.exchange("The next input", here))
