"""Sums, means and concatenations over replicas, and how devices bring them together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce as fold
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.cuda import nccl

from stratagem._core import device_names
from stratagem._core.distributed_values import (
    DistributedValues,
    Mirrored,
    at_destinations,
    components,
    place,
)
from stratagem._core.nests import map_leaves
from stratagem._core.options import CommunicationOptions, ReduceOp, reduce_op_from
from stratagem._core.tensors import IndexedSlices, TensorStandIn
from stratagem._core.variables import Variable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

Axis = int | tuple[int, ...] | list[int]


def reduce_nest(op: ReduceOp, nest: Any, destinations: Any, replicas: int) -> Any:
    """Reduce each leaf of `nest` over its replicas, and copy it to the destinations.

    Args:
        op: The reduction.
        nest: Distributed values; a plain value counts as equal on all replicas, so that its mean is
            itself, as it is and where it is.
        destinations: As for `place`.
        replicas: The number of replicas.

    Raises:
        InvalidArgumentError: A plain value is to be summed, or the components of a value differ in
            shape or dtype. Spec: RED-5 to RED-7, RED-15 to RED-23.
    """

    def reduced(leaf: Any, destination: Any) -> Any:
        values = components(leaf)
        if values is not None:
            return place(combine(op, values), destination)
        if op is ReduceOp.MEAN:
            return leaf
        if replicas > 1:
            raise sum_of_plain(leaf)
        return place(leaf, destination)

    return at_destinations(reduced, nest, destinations)


def sum_of_plain(leaf: Any) -> InvalidArgumentError:
    """Return the error for adding up what is the same on several replicas."""
    return InvalidArgumentError(
        f"A non-DistributedValues value {leaf!r} cannot be reduced with the given "
        f"reduce op {ReduceOp.SUM}: whether its copies on all replicas are meant is "
        "unclear; use ReduceOp.MEAN or multiply it yourself. If each replica has returned it, have "
        "them return tensors: equal small integers of Python are one object"
    )


def combine(op: ReduceOp, values: Sequence[Any]) -> torch.Tensor | IndexedSlices:
    """Add `values` in their order, starting from the first; MEAN also divides.

    Rows (`IndexedSlices`) are concatenated, so that they stay sparse.

    Raises:
        InvalidArgumentError: The values differ in shape or dtype. Spec: RED-6.
    """
    if all(isinstance(value, IndexedSlices) for value in values):
        return _combine_rows(op, values)
    tensors = addends(op, values)
    home = tensors[0].device
    total = fold(torch.add, (tensor.to(home) for tensor in tensors))
    return finished(op, total, len(tensors))


def addends(op: ReduceOp, values: Sequence[Any]) -> list[torch.Tensor]:
    """Return values of equal shape and dtype as they are to be added up.

    Raises:
        InvalidArgumentError: The values differ in shape or dtype. Spec: RED-6.
    """
    tensors = [dense(value) for value in values]
    require_equal_dtypes(tensors)
    _require_equal_shapes(tensors)
    return [addend(op, tensor) for tensor in tensors]


def addend(op: ReduceOp, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype in which it is to be added up.

    Integers of a mean are added as what it is, float64: the sum of a few might not fit their own
    dtype. Of flags those that are set are counted, as torch's `sum` does.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor
    if op is ReduceOp.MEAN:
        return tensor.to(torch.float64)
    return tensor.to(torch.int64) if tensor.dtype is torch.bool else tensor


def _combine_rows(op: ReduceOp, parts: Sequence[IndexedSlices]) -> IndexedSlices:
    home = parts[0].device
    flat = [part.flat.to(home) for part in parts]
    rows = torch.cat([part.values for part in flat])
    indices = torch.cat([part.indices for part in flat])
    return IndexedSlices(finished(op, rows, len(parts)), indices, parts[0].dense_shape)


def dense(value: Any) -> torch.Tensor:
    """Return a component as a tensor.

    Raises:
        InvalidArgumentError: It is nothing that can be reduced.
    """
    if isinstance(value, IndexedSlices):
        return value.to_dense()
    if isinstance(value, TensorStandIn):
        value = value._operand()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"Only tensors and numbers can be reduced or gathered, not {value!r}; "
            "return something else from the replica function, or leave it out"
        ) from error


def _require_equal_shapes(tensors: Sequence[torch.Tensor]) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors]
    if any(shape != shapes[0] for shape in shapes):
        raise InvalidArgumentError(
            f"Cannot reduce values whose shapes differ between replicas: {shapes}; "
            "pass `axis` to reduce the differing dimension as well"
        )


def require_equal_dtypes(tensors: Sequence[torch.Tensor]) -> None:
    """Check that components may be brought together.

    Raises:
        InvalidArgumentError: Their dtypes differ.
    """
    dtypes = [tensor.dtype for tensor in tensors]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise InvalidArgumentError(
            f"Cannot bring values together whose dtypes differ between replicas: "
            f"{dtypes}; convert them with .to() in the replica function"
        )


def finished(op: ReduceOp, total: torch.Tensor, count: int) -> torch.Tensor:
    """Return a sum as it is, or made a mean; that of integers is float64.

    Spec: RED-7.
    """
    if op is ReduceOp.SUM:
        return total
    if not (total.is_floating_point() or total.is_complex()):
        total = total.to(torch.float64)
    return total / count


def reduce_axes(op: ReduceOp, nest: Any, axis: Axis, replicas: int) -> Any:
    """Reduce each leaf over `axis` within its components, then over replicas.

    A MEAN weights each component by the number of elements it reduces.

    Raises:
        InvalidArgumentError: `axis` does not exist.
        InvalidTypeError: `axis` is neither an integer nor several. Spec: RED-8 to RED-14, RED-19.
    """

    def reduced(leaf: Any) -> torch.Tensor:
        values = components(leaf) or (leaf,) * replicas
        total, count = axis_sum(op, [dense(value) for value in values], axis)
        return finished(op, total, count)

    return map_leaves(reduced, nest)


def axis_sum(
    op: ReduceOp, components: Sequence[torch.Tensor], axis: Axis
) -> tuple[torch.Tensor, int]:
    """Return the sum over `axis` and components, and how many elements went into it."""
    totals, count = [], 0
    for component in components:
        dims = dimensions(component, axis)
        # Without dimensions torch.sum would reduce them all.
        part = addend(op, component)
        totals.append(part.sum(dims, dtype=part.dtype) if dims else part)
        count += torch.Size([component.shape[dim] for dim in dims]).numel()
    total = combine(ReduceOp.SUM, totals)
    assert isinstance(total, torch.Tensor)
    return total, count


def dimensions(tensor: torch.Tensor, axis: Axis) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else axis
    if not isinstance(axes, tuple | list):
        raise InvalidTypeError(
            f"`axis` must be an integer, tuple or list of integers, not {axis!r}"
        )
    rank = tensor.dim()
    for dim in axes:
        if not -rank <= dim < rank:
            raise InvalidArgumentError(f"`axis` {dim} is out of range for a value of rank {rank}")
    return tuple(dim % rank for dim in axes)


def gather(leaf: Any, axis: int) -> Any:
    """Return the components of `leaf` joined along `axis`, in replica order.

    A plain value is returned as it is.

    Raises:
        InvalidArgumentError: The components have no such axis, or differ in another one, or in
            dtype.
        UnimplementedError: `leaf` is an `IndexedSlices`.

    Spec: GAT-1 to GAT-7.
    """
    if isinstance(leaf, IndexedSlices):
        raise UnimplementedError(
            "gather does not support IndexedSlices; gather its values and its indices"
        )
    values = components(leaf)
    if values is None:
        return leaf
    tensors = [dense(value) for value in values]
    require_equal_dtypes(tensors)
    if len({_shape_without(tensor, axis) for tensor in tensors}) > 1:
        raise InvalidArgumentError(
            f"Cannot gather values of shapes {[tuple(t.shape) for t in tensors]} along "
            f"axis {axis}: all other dimensions have to agree"
        )
    home = tensors[0].device
    return torch.cat([tensor.to(home) for tensor in tensors], dim=axis)


def _shape_without(tensor: torch.Tensor, axis: int) -> tuple[int | None, ...]:
    (dim,) = dimensions(tensor, axis)
    return (*tensor.shape[:dim], None, *tensor.shape[dim + 1 :])


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
                kinds[tuple((part.dtype, part.device) for part in pair[0].values)].append(number)
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
    dense = all(isinstance(p, torch.Tensor) and p.layout is torch.strided for p in parts)
    if len(parts) != len(places) or not dense:
        return False
    alike = len({part.shape for part in parts}) == 1
    pairs = zip(parts, places, strict=True)
    return alike and all(part.device == place.device for part, place in pairs)
