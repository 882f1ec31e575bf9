"""Concatenation over replicas that gradients flow back through."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.enums import ReduceOp
from stratagem._core.tensors.indexed_slices import IndexedSlices
from stratagem._core.tensors.nests import leaves, map_leaves
from stratagem._core.tensors.operators import TensorStandIn
from stratagem._core.values.distributed_values import DistributedValues, PerReplica
from stratagem._core.values.placement import place
from stratagem._core.values.reduction import dimensions
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._core.protocols import AnyStrategy
    from stratagem._core.replicas.replica_context import ReplicaContext


def all_gather(replica: ReplicaContext, value: Any, axis: int) -> Any:
    """Carry out `ReplicaContext.all_gather`."""
    alone = replica.num_replicas_in_sync == 1
    parts = [_part(leaf, alone) for leaf in leaves(value)]
    if not parts:
        return value
    joined = iter(parts if alone else _AllGather.apply(replica, axis, *parts))  # type: ignore[no-untyped-call] # of torch
    return map_leaves(lambda _: next(joined), value)


def _part(leaf: Any, alone: bool) -> torch.Tensor:
    if isinstance(leaf, TensorStandIn):
        leaf = leaf._operand()
    if isinstance(leaf, IndexedSlices):
        raise UnimplementedError(
            "all_gather does not support IndexedSlices; gather its values and its indices"
        )
    if alone and isinstance(leaf, int | float):
        leaf = torch.tensor(leaf)
    if isinstance(leaf, torch.Tensor):
        return leaf
    raise InvalidArgumentError(f"all_gather takes tensors, not {leaf!r}; wrap it by torch.tensor()")


class _AllGather(torch.autograd.Function):
    """A concatenation; the gradient is the replicas' sum, each taking its slice."""

    @staticmethod
    def forward(
        ctx: Any, replica: ReplicaContext, axis: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        # A tensor that all replicas share would count as one value, not as several.
        distinct = [tensor.detach() for tensor in tensors]
        joined, starts = replica._merge(partial(_join, axis), distinct, {})
        ctx.call = replica, axis, starts, [tensor.shape[axis] for tensor in tensors]
        return tuple(joined)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        replica, axis, starts, lengths = ctx.call
        sums = replica._reduced(ReduceOp.SUM, gradients, None)
        slices = zip(sums, starts, lengths, strict=True)
        return None, None, *(total.narrow(axis, *where) for total, *where in slices)


def _join(axis: int, strategy: AnyStrategy, *merged: Any) -> tuple[list[Any], list[Any]]:
    extended = strategy.extended
    joined = extended._gathered(merged, axis)
    lengths = [_lengths(value, axis) for value in merged]
    before = extended._lengths_before([sum(length) for length in lengths])
    starts = [_starts(*pair) for pair in zip(before, lengths, strict=True)]
    return [place(*pair) for pair in zip(joined, merged, strict=True)], starts


def _lengths(value: Any, axis: int) -> list[int]:
    parts = value.values if isinstance(value, DistributedValues) else (value,)
    return [part.shape[dimensions(part, axis)[0]] for part in parts]


def _starts(before: int, lengths: Sequence[int]) -> Any:
    """Return where the part of each replica begins."""
    starts = [before + sum(lengths[:index]) for index in range(len(lengths))]
    return PerReplica(starts) if len(starts) > 1 else before
