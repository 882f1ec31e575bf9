"""How values of all replicas become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from stratagem._core.tensors.nests import leaves, map_leaves
from stratagem._core.values.gathering import gather
from stratagem._core.values.reduction import Axis, combine, reduce_axes
from stratagem._strategies.hooks.replicas import ReplicaHooks

if TYPE_CHECKING:
    from stratagem._core.enums import ReduceOp
    from stratagem._core.options import CommunicationOptions


class ReductionHooks(ReplicaHooks):
    """Reducing and gathering; may also be called in the default context."""

    def _reduce_to(
        self,
        reduce_op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        """Reduce a nest over replicas; usually by `_reduce_nest`."""
        raise self._missing("_reduce_to")

    def _batch_reduce_to(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        return [
            self._reduce_to(reduce_op, value, destinations, options)
            for value, destinations in value_destination_pairs
        ]

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Copy a tensor to the destinations; usually by `_place_value`."""
        raise self._missing("_broadcast_to")

    def _reduce(self, reduce_op: ReduceOp, value: Any) -> Any:
        """Reduce to the current device, for `Strategy.reduce` without an axis."""
        reduced = self._reduce_to(reduce_op, value, self._current_device(), None)
        return self._local_results(reduced)[0]

    def _reduce_axes(self, reduce_op: ReduceOp, value: Any, axis: Axis) -> Any:
        """Reduce over `axis` and replicas, for `Strategy.reduce` with an axis."""
        reduced = reduce_axes(reduce_op, value, axis, self._num_local_replicas)
        return self._place_value(reduced, self._current_device())

    def _gather(self, value: Any, axis: int) -> Any:
        """Concatenate the components of each leaf on the current device."""
        joined = iter(self._gathered(leaves(value), axis))
        gathered = map_leaves(lambda _: next(joined), value)
        return self._place_value(gathered, self._current_device())

    def _gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        """Concatenate the components of each value, where the first of them is."""
        return [gather(value, axis) for value in values]

    def _lengths_before(self, lengths: Sequence[int]) -> Sequence[int]:
        """Return where in concatenations the parts of this process begin.

        Args:
            lengths: Of those parts.
        """
        return [0] * len(lengths)

    def _combine_copies(
        self, reduce_op: ReduceOp, copies: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Reduce the copies of a variable, for a read."""
        total = combine(reduce_op, copies)
        assert isinstance(total, torch.Tensor)
        return total
