"""Sums, means and concatenations over the replicas of all workers.

Each worker first reduces the values of its own replicas, and then all workers reduce these. Every
worker gets the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from numbers import Number
from typing import Any

import torch

from stratagem._core.distributed_values import PerReplica, components, place
from stratagem._core.nests import leaves, map_leaves
from stratagem._core.options import CommunicationOptions, ReduceOp
from stratagem._core.reduction import (
    Axis,
    addends,
    axis_sum,
    combine,
    dense,
    dimensions,
    finished,
    gather,
    sum_of_plain,
)
from stratagem._core.tensors import IndexedSlices
from stratagem._local.mirrored import EQUAL_COPIES, AcrossReplicas, mean_of_equals
from stratagem._multi_worker.group import WorkerGroup

Reduced = torch.Tensor | IndexedSlices


class AcrossWorkers(AcrossReplicas):
    """Brings values of all replicas of all workers, `local` ones of each, together."""

    def __init__(self, group: WorkerGroup, local: int, options: CommunicationOptions) -> None:
        self._group = group
        self._local = local
        self._options = options

    def reduce_to(
        self, op: ReduceOp, pairs: Sequence[tuple[Any, Any]], options: CommunicationOptions | None
    ) -> list[Any]:
        flat = [leaf for value, _ in pairs for leaf in leaves(value)]
        pack_bytes = self._options.merge(options).bytes_per_pack
        different = [leaf for leaf in flat if not isinstance(leaf, EQUAL_COPIES)]
        reduced = iter(self._reduced(op, different, pack_bytes))

        def result(leaf: Any) -> Any:
            equal = isinstance(leaf, EQUAL_COPIES)
            return mean_of_equals(op, leaf) if equal else next(reduced)

        return [place(map_leaves(result, value), where) for value, where in pairs]

    def combine_copies(self, op: ReduceOp, copies: Sequence[torch.Tensor]) -> torch.Tensor:
        (total,) = self._reduced(op, [PerReplica(copies)])
        assert isinstance(total, torch.Tensor)
        return total

    def _components(self, leaf: Any) -> tuple[Any, ...] | None:
        """Return the component of each replica of this worker; None for a plain value.

        A single replica's values are not wrapped, so each counts as a component.
        """
        found = components(leaf)
        return (leaf,) if found is None and self._local == 1 else found

    def _same_here(self, leaf: Any) -> tuple[Any, ...] | None:
        """Return a number or tensor once for each replica of this worker; None for others."""
        kinds = (torch.Tensor, bool, int, float, complex)
        return (leaf,) * self._local if isinstance(leaf, kinds) else None

    def _reduced(self, op: ReduceOp, values: Sequence[Any], pack_bytes: int = 0) -> list[Any]:
        """Reduce values; plain ones count as equal on all replicas of this worker."""
        parts = [self._components(value) for value in values]
        if op is ReduceOp.SUM:
            self._require_components(values, parts)
        else:
            # What is one object on the replicas of a worker may be another one on the next.
            parts = [part or self._same_here(v) for v, part in zip(values, parts, strict=True)]
        own = [self._own_total(op, part) for part in parts if part is not None]
        totals = iter(self.summed(own, pack_bytes))
        return [
            value if part is None else self._finished(op, next(totals))
            for value, part in zip(values, parts, strict=True)
        ]

    def _require_components(self, values: Sequence[Any], parts: Sequence[Any]) -> None:
        for value, part in zip(values, parts, strict=True):
            if part is None:
                # Others may have different values, and would wait for this worker's.
                self._group.agree("A value to be reduced", "one value for all replicas")
                raise sum_of_plain(value)

    def _own_total(self, op: ReduceOp, part: tuple[Any, ...]) -> Reduced:
        if all(isinstance(one, IndexedSlices) for one in part):
            return combine(ReduceOp.SUM, part)
        return combine(ReduceOp.SUM, addends(op, part))

    def _finished(self, op: ReduceOp, total: Reduced) -> Reduced:
        count = self._group.size * self._local
        if isinstance(total, IndexedSlices):
            values = finished(op, total.values, count)
            return IndexedSlices(values, total.indices, total.dense_shape)
        return finished(op, total, count)

    def summed(self, own: Sequence[Reduced], pack_bytes: int = 0) -> list[Reduced]:
        """Add up the workers' values; of `IndexedSlices`, concatenate the rows."""
        if not own:
            return []
        forms = [_form(value) for value in own]
        counts = [_rows(value) for value in own]
        by_rank = self._group.agree("A value to be reduced", forms, counts)
        tensors = [value for value in own if isinstance(value, torch.Tensor)]
        sums = iter(self._group.sums(tensors, pack_bytes))
        return [
            self._all_rows(value, [counts[number] for counts in by_rank])
            if isinstance(value, IndexedSlices)
            else next(sums)
            for number, value in enumerate(own)
        ]

    def _all_rows(self, value: IndexedSlices, counts: Sequence[int]) -> IndexedSlices:
        values = torch.cat(self._group.joined(value.values, counts))
        indices = torch.cat(self._group.joined(value.indices, counts))
        return IndexedSlices(values, indices, value.dense_shape)

    def reduce_axes(self, op: ReduceOp, nest: Any, axis: Axis) -> Any:
        flat = leaves(nest)
        parts = [self._components(leaf) or (leaf,) * self._local for leaf in flat]
        own = [axis_sum(op, [dense(one) for one in part], axis) for part in parts]
        totals = self.summed([total for total, _ in own])
        counts = self.summed([torch.tensor([count for _, count in own])])
        means = zip(totals, dense(counts[0]).tolist(), strict=True)
        reduced = iter([finished(op, dense(total), count) for total, count in means])
        return map_leaves(lambda _: next(reduced), nest)

    def gathered(self, values: Sequence[Any], axis: int) -> list[Any]:
        spread = [self._components(value) is not None for value in values]
        own = [gather(value, axis) for value in values]
        tensors = [dense(x) for x, many in zip(own, spread, strict=True) if many]
        plain = [_described(x) for x, many in zip(own, spread, strict=True) if not many]
        joined = iter(self._joined(tensors, axis, plain))
        return [next(joined) if many else value for value, many in zip(own, spread, strict=True)]

    def _joined(
        self, tensors: Sequence[torch.Tensor], axis: int, plain: Sequence[str]
    ) -> list[torch.Tensor]:
        # Lengths may differ only in the first dimension.
        dims = [dimensions(tensor, axis)[0] for tensor in tensors]
        moved = [each.movedim(dim, 0) for each, dim in zip(tensors, dims, strict=True)]
        forms = [_form_of_row(each) for each in moved]
        counts = [len(each) for each in moved]
        by_rank = self._group.agree("A value to be gathered", [forms, plain], counts)
        lengths = zip(*by_rank, strict=True)
        return [
            torch.cat(self._group.joined(each, length)).movedim(0, dim)
            for each, length, dim in zip(moved, lengths, dims, strict=True)
        ]

    def lengths_before(self, lengths: Sequence[int]) -> list[int]:
        by_rank = self._group.agree("A position", [], list(lengths))
        before = by_rank[: self._group.place.rank]
        return [sum(each[number] for each in before) for number in range(len(lengths))]

    def of_first(self, value: Any) -> Reduced:
        own = value if isinstance(value, IndexedSlices) else dense(value)
        by_rank = self._group.agree("A value to be broadcast", _form(own), _rows(own))
        if isinstance(own, torch.Tensor):
            return self._group.spread([own])[0]
        values = self._group.joined(own.values, by_rank)[0]
        indices = self._group.joined(own.indices, by_rank)[0]
        return IndexedSlices(values, indices, own.dense_shape)


def _described(plain: Any) -> str:
    """Return what differs where a plain value does; every worker gathers its own."""
    if isinstance(plain, torch.Tensor):
        content = hashlib.sha256(bytes_of(plain)).hexdigest()
        return f"one tensor for all replicas, {_form(plain)}, with the SHA-256 {content}"
    return repr(plain) if isinstance(plain, Number) else type(plain).__name__


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes of all elements, in the order of rows."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _form(value: Reduced) -> list[Any]:
    """Return the dtype and the shape, which have to be equal on all workers."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape)]
    return ["IndexedSlices", *_form_of_row(value.values), value.dense_shape]


def _form_of_row(rows: torch.Tensor) -> list[Any]:
    return [str(rows.dtype), list(rows.shape[1:])]


def _rows(value: Reduced) -> int:
    """Return the number of rows of `IndexedSlices`, which may differ; 0 for tensors."""
    return len(value.values) if isinstance(value, IndexedSlices) else 0
