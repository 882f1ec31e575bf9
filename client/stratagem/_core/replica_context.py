"""What a replica function sees of its place among the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from stratagem._core import contexts
from stratagem._core.contexts import ThreadContext, require_replica
from stratagem._core.distributed_values import DistributedValues, PerReplica, place
from stratagem._core.nests import leaves, map_leaves
from stratagem._core.options import ReduceOp, old_spelling, reduce_op_from
from stratagem._core.reduction import dimensions
from stratagem._core.tensors import IndexedSlices, TensorStandIn
from stratagem_proto.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from stratagem._core.options import CommunicationOptions
    from stratagem._core.protocols import AnyStrategy

MergeCall = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]


_IDS = (int, torch.Tensor, type(None))


class ReplicaContext:
    """The running replica, got by `get_replica_context()`.

    Entered by `with`, it makes the thread run that replica; strategies do so.

    Args:
        strategy: The strategy that runs the replica.
        replica_id_in_sync_group: Its number among all replicas in sync.
        merge: How a merge call reaches the other replicas; by default there are none and the
            function is called at once.

    Raises:
        InvalidArgumentError: The number is of another type. Spec: REP-1.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        replica_id_in_sync_group: int | torch.Tensor | None,
        merge: MergeCall | None = None,
    ) -> None:
        if not isinstance(replica_id_in_sync_group, _IDS):
            raise InvalidArgumentError(
                "replica_id_in_sync_group can only be an integer, a Tensor or None, "
                f"not {replica_id_in_sync_group!r}"
            )
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._merge_with_others = merge
        self._entered: list[ThreadContext] = []

    def __enter__(self) -> ReplicaContext:
        extended = self._strategy._extended
        number = 0 if self._replica_id is None else int(self._replica_id)
        local = number - extended._first_replica_id
        self._entered.append(ThreadContext(self._strategy, self, local).__enter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    @property
    def strategy(self) -> AnyStrategy:
        """The strategy that runs the replica. Spec: REP-4."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas in sync. Spec: REP-3."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> torch.Tensor | int | None:
        """The replica's number, an int32 scalar made anew at each access.

        Spec: REP-2.
        """
        if isinstance(self._replica_id, int):
            return torch.tensor(self._replica_id, dtype=torch.int32)
        return self._replica_id

    @property
    @old_spelling("the device of a tensor that the replica makes")
    def devices(self) -> Sequence[Any]:
        """The device of the replica, the only one of a sequence.

        Strategies with several replicas in this process nest it once more: `[[device]]`. Spec:
        REP-5.

        Raises:
            ContextError: The replica is not running in this thread.
        """
        require_replica(self)
        return self._strategy.extended._replica_devices()

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function once for all replicas, in cross-replica context.

        All replicas have to make the call. The function gets the strategy and then the merged
        arguments of all replicas; each replica gets its component of what it returns.

        Args:
            merge_fn: The function; that of the first replica is called.
            args: Positional arguments of this replica.
            kwargs: Keyword arguments of this replica.

        Raises:
            ContextError: The replica is not running in this thread, or the replicas make different
                numbers of merge calls.

        Spec: REP-6, MRG-1 to MRG-6.
        """
        if get_replica_context() is not self:
            require_replica(self)
        return self._merge(merge_fn, args, kwargs or {})

    def _merge(
        self, merge_fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self._merge_with_others is not None:
            return self._merge_with_others(merge_fn, args, kwargs)
        with ThreadContext(self._strategy):
            return merge_fn(self._strategy, *args, **kwargs)

    def all_reduce(
        self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Reduce a nest over all replicas and give each of them the result.

        Differentiable: the gradient is reduced in the same way. All replicas have to make the call,
        with the same structure.

        Args:
            reduce_op: The reduction.
            value: Nest of tensors and `IndexedSlices`; the latter stay sparse and are not
                differentiated.
            options: Hints for the communication.

        Raises:
            InvalidArgumentError: `reduce_op` is no reduction, or a leaf is not a tensor.
            ContextError: As for `merge_call`.

        Spec: REP-7, REP-9.
        """
        op = reduce_op_from(reduce_op)
        require_replica(self)
        alone = self.num_replicas_in_sync == 1
        parts = [_as_tensor(leaf, alone) for leaf in leaves(value)]
        for part in parts:
            if not isinstance(part, torch.Tensor | IndexedSlices):
                raise InvalidArgumentError(
                    f"all_reduce takes tensors and IndexedSlices, not {part!r}; wrap it by "
                    "torch.tensor()"
                )
        if not parts:
            return value
        dense = [part for part in parts if isinstance(part, torch.Tensor)]
        sparse = [part for part in parts if isinstance(part, IndexedSlices)]
        rows = iter(self._reduced(op, sparse, options)) if sparse else iter(())
        sums: Any = iter(())
        if dense:
            sums = iter(_AllReduce.apply(self, op, options, *dense))  # type: ignore[no-untyped-call] # of torch
        results = (next(rows if isinstance(part, IndexedSlices) else sums) for part in parts)
        return map_leaves(lambda _: next(results), value)

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Concatenate a nest over all replicas and give each of them the result.

        Differentiable: the gradients of all replicas are added, and each takes the slice of what it
        put in. All replicas have to make the call, with the same structure.

        Args:
            value: Nest of tensors that are equal in shape but for `axis`.
            axis: Dimension along which to join, in replica order.
            options: Hints for the communication.

        Raises:
            InvalidArgumentError: A leaf is not a tensor, or the shapes do not fit.
            UnimplementedError: A leaf is an `IndexedSlices`.
            ContextError: As for `merge_call`.

        Spec: REP-8.
        """
        require_replica(self)
        alone = self.num_replicas_in_sync == 1
        parts = [_as_tensor(leaf, alone) for leaf in leaves(value)]
        for part in parts:
            if isinstance(part, IndexedSlices):
                raise UnimplementedError(
                    "all_gather does not support IndexedSlices; gather its values and its indices"
                )
            if not isinstance(part, torch.Tensor):
                raise InvalidArgumentError(
                    f"all_gather takes tensors, not {part!r}; wrap it by torch.tensor()"
                )
        if not parts:
            return value
        joined = iter(parts if alone else _AllGather.apply(self, axis, *parts))  # type: ignore[no-untyped-call] # of torch
        return map_leaves(lambda _: next(joined), value)

    def _reduced(
        self, op: ReduceOp, parts: Sequence[Any], options: CommunicationOptions | None
    ) -> Any:
        def merge(strategy: AnyStrategy, *merged: Any) -> Any:
            pairs = [(part, part) for part in merged]
            return tuple(strategy.extended.batch_reduce_to(op, pairs, options))

        # Not by merge_call: autograd may run backward in a thread of its own.
        return self._merge(merge, parts, {})


def _as_tensor(leaf: Any, alone: bool) -> Any:
    if isinstance(leaf, TensorStandIn):
        leaf = leaf._operand()
    return torch.tensor(leaf) if alone and isinstance(leaf, int | float) else leaf


class _AllReduce(torch.autograd.Function):
    """An all-reduce whose gradient is the same all-reduce."""

    @staticmethod
    def forward(
        ctx: Any,
        replica: ReplicaContext,
        op: ReduceOp,
        options: CommunicationOptions | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = replica, op, options
        distinct = [tensor.detach() for tensor in tensors]
        return tuple(replica._reduced(op, distinct, options))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        replica, op, options = ctx.call
        return None, None, None, *replica._reduced(op, gradients, options)


# The stack of contexts is below replicas and knows no more than that they are there.
get_replica_context: Callable[[], ReplicaContext | None] = cast(
    "Callable[[], ReplicaContext | None]", contexts.get_replica_context
)


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
    lengths = []
    for value in merged:
        parts = value.values if isinstance(value, DistributedValues) else (value,)
        lengths.append([part.shape[dimensions(part, axis)[0]] for part in parts])
    # Where the part of each replica begins.
    starts: list[Any] = []
    for before, own in zip(extended._lengths_before(list(map(sum, lengths))), lengths, strict=True):
        begins = [before + sum(own[:index]) for index in range(len(own))]
        starts.append(PerReplica(begins) if len(begins) > 1 else before)
    return [place(*pair) for pair in zip(joined, merged, strict=True)], starts
