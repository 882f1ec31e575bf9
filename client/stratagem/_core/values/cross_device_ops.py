"""Ways to bring tensors of several devices together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.cuda import nccl

from stratagem._core import device_names
from stratagem._core.enums import ReduceOp, reduce_op_from
from stratagem._core.options import CommunicationOptions
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.values.distributed_values import DistributedValues, Mirrored
from stratagem._core.values.placement import place
from stratagem._core.values.reduction import addend, combine, dense, finished
from stratagem._core.variables.variable import Variable
from stratagem_proto.errors import InvalidArgumentError

Pair = tuple[DistributedValues, Any]
"""What to reduce, and where the result goes."""


class CrossDeviceOps:
    """The seam between a strategy and the devices that its replicas run on.

    A subclass overrides `reduce_implementation`, and `batch_reduce_implementation` where several
    values together are cheaper than one after the other. Destinations are those of
    `StrategyExtended.reduce_to`.
    """

    __module__ = "stratagem"

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce one value over replicas.

        Args:
            reduce_op: The reduction.
            per_replica_value: Distributed values; a tensor counts as one component.
            destinations: Where the result goes.
            options: Hints for the communication.

        Returns:
            A tensor, or `Mirrored` where there are several destinations.

        Raises:
            InvalidArgumentError: The components differ in shape.
        """
        value = _as_distributed(per_replica_value)
        op = reduce_op_from(reduce_op)
        return self.reduce_implementation(op, value, destinations, options)

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduce several values; otherwise as `reduce`."""
        pairs = [(_as_distributed(value), where) for value, where in value_destination_pairs]
        op = reduce_op_from(reduce_op)
        return self.batch_reduce_implementation(op, pairs, options)

    def broadcast(self, tensor: torch.Tensor, destinations: Any) -> Any:
        """Copy a tensor to the destinations."""
        return place(tensor, destinations)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        """Carry out `reduce`; here, on the device of the first component."""
        return place(combine(reduce_op, per_replica_value.values), destinations)

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[Pair],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        """Carry out `batch_reduce`; here, one after the other."""
        return [
            self.reduce_implementation(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]


def _as_distributed(value: Any) -> DistributedValues:
    return value if isinstance(value, DistributedValues) else Mirrored([value])


class ReductionToOneDevice(CrossDeviceOps):
    """Adds up on one device and copies the result from there.

    Args:
        reduce_to_device: The device; by default that of the first component.
        accumulation_fn: Adds a list of tensors, all on that device; by default one after the other,
            in replica order.
    """

    __module__ = "stratagem"

    def __init__(
        self,
        reduce_to_device: str | torch.device | None = None,
        accumulation_fn: Callable[[list[torch.Tensor]], torch.Tensor] | None = None,
    ) -> None:
        self._device = reduce_to_device
        self._accumulate = accumulation_fn

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        values: Sequence[Any] = per_replica_value.values
        if self._device is not None:
            values = [place(value, self._device) for value in values]
        return place(self._reduced(reduce_op, values), destinations)

    def _reduced(self, op: ReduceOp, values: Sequence[Any]) -> Any:
        sparse = any(isinstance(value, IndexedSlices) for value in values)
        if self._accumulate is None or sparse:
            return combine(op, values)
        tensors = [addend(op, dense(value)) for value in values]
        total = self._accumulate([tensor.to(tensors[0].device) for tensor in tensors])
        return finished(op, total, len(tensors))


class _PackedAllReduce(CrossDeviceOps):
    """Reduces where the components are, several tensors in one go.

    What does not go back to where it came from, and rows, are reduced on one device.

    Args:
        num_packs: How many messages a batch becomes at most; 0 leaves every tensor by itself.

    Raises:
        InvalidArgumentError: `num_packs` is negative.
    """

    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise InvalidArgumentError(f"num_packs must be >= 0, not {num_packs}")
        self._num_packs = num_packs

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[Pair],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        results: dict[int, Any] = {}
        kinds: defaultdict[Any, list[int]] = defaultdict(list)
        for number, pair in enumerate(value_destination_pairs):
            if _stays(*pair):
                kinds[_kind(pair[0])].append(number)
            else:
                value = combine(reduce_op, pair[0].values)
                results[number] = place(value, pair[1])
        for numbers in kinds.values():
            for pack in self._packs(numbers):
                values = [value_destination_pairs[number][0] for number in pack]
                results |= zip(pack, self._reduce_pack(reduce_op, values), strict=True)
        return [results[number] for number in range(len(value_destination_pairs))]

    def _packs(self, numbers: list[int]) -> list[list[int]]:
        size = -(-len(numbers) // self._num_packs) if self._num_packs else 1
        return [numbers[at : at + size] for at in range(0, len(numbers), size)]

    def _reduce_pack(self, op: ReduceOp, values: Sequence[DistributedValues]) -> list[Mirrored]:
        rows = [[addend(op, dense(part).detach()) for part in value.values] for value in values]
        by_device = list(zip(*rows, strict=True))
        sums = self._all_reduce([_flatten_dense_tensors(part) for part in by_device])
        parts = [
            _unflatten_dense_tensors(finished(op, total, len(sums)), like)
            for total, like in zip(sums, by_device, strict=True)
        ]
        return [Mirrored(copies) for copies in zip(*parts, strict=True)]

    def _all_reduce(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sum of the tensors on the device of each."""
        raise NotImplementedError


class HierarchicalCopyAllReduce(_PackedAllReduce):
    """Adds up pairs of devices, then pairs of those, and copies the same way back.

    Args:
        num_packs: How many messages a batch becomes at most.
    """

    __module__ = "stratagem"

    def _all_reduce(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if len(tensors) == 1:
            return list(tensors)
        half = -(-len(tensors) // 2)
        upper = [*tensors[half:], *([None] * (2 * half - len(tensors)))]
        sums = self._all_reduce(
            [
                low if high is None else low + high.to(low.device)
                for low, high in zip(tensors[:half], upper, strict=True)
            ]
        )
        copies = zip(sums, tensors[half:], strict=False)
        return [*sums, *(total.to(high.device, copy=True) for total, high in copies)]


class NcclAllReduce(_PackedAllReduce):
    """Adds up by NVIDIA's collectives, between GPUs of this machine.

    Components on CPUs, or several on one GPU, are added up hierarchically.

    Args:
        num_packs: How many messages a batch becomes at most.
    """

    __module__ = "stratagem"

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__(num_packs)
        self._fallback = HierarchicalCopyAllReduce(num_packs)

    def _all_reduce(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not nccl_connects([tensor.device for tensor in tensors]):
            return self._fallback._all_reduce(tensors)
        sums = [torch.empty_like(tensor) for tensor in tensors]
        nccl.all_reduce(list(tensors), sums)
        return sums


def nccl_connects(devices: Sequence[torch.device]) -> bool:
    """Return whether these are GPUs, each another one."""
    distinct = len(set(devices)) == len(devices)
    return distinct and all(device.type == "cuda" for device in devices)


def default_cross_device_ops(devices: Sequence[str]) -> CrossDeviceOps:
    """Return what suits replicas on these devices.

    Args:
        devices: Full names.
    """
    targets = [device_names.torch_device(device) for device in devices]
    if len(targets) > 1 and nccl_connects(targets):
        return NcclAllReduce()
    return ReductionToOneDevice()


def _stays(value: DistributedValues, destinations: Any) -> bool:
    """Whether dense components go back to where each of them is."""
    if not isinstance(destinations, DistributedValues | Variable):
        return False
    parts, places = value.values, destinations.values
    if len(parts) != len(places) or not all(map(_is_dense, parts)):
        return False
    alike = len({part.shape for part in parts}) == 1
    pairs = zip(parts, places, strict=True)
    return alike and all(part.device == place.device for part, place in pairs)


def _is_dense(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.layout is torch.strided


def _kind(value: DistributedValues) -> Any:
    return tuple((part.dtype, part.device) for part in value.values)
