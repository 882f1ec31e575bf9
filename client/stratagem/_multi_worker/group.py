"""The workers that train together: what they exchange, compare and reduce."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import zip_longest
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
from stratagem._multi_worker.links import Links
from stratagem._multi_worker.meeting import WorkerPlace, require_trust
from stratagem_proto.errors import AbortedError, InvalidArgumentError

_DIGEST_BYTES = 32
_HASHED_ELEMENTS = 1 << 16
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WorkerGroup:
    """The workers that train together, as one of them sees them.

    All workers call the same methods in the same order. Each operation begins with an `exchange`,
    in which workers notice that they are at different operations. The first operation connects the
    workers; a worker that is alone never connects.

    Raises:
        FailedPreconditionError: They are on several machines, and nobody has said that these speak
            without certificates.
    """

    def __init__(self, place: WorkerPlace, timeout: float, facts: Any) -> None:
        require_trust(place)
        self.place = place
        self._timeout = timeout
        self._facts = facts
        self._links: Links | None = None
        self._written: dict[str, str] = {}

    @property
    def size(self) -> int:
        return self.place.size

    def exchange(self, operation: str, details: Any) -> list[Any]:
        """Send details to all workers, and return those of each worker, by rank.

        This is cheap where the details of all workers are the same. JSON carries them. All workers
        must be at the same operation.

        Raises:
            AbortedError: Workers are at different operations.
            InvalidArgumentError: Since the last one they have written different values.
            UnavailableError: A worker has ended.
            DeadlineExceededError: A worker did not take part in time.
        """
        if self.size == 1:
            return [details]
        text = json.dumps([operation, details, self._written], default=str).encode()
        texts = [text] * self.size
        if not self._all_equal(hashlib.sha256(text).digest()):
            texts = self._joined_bytes(text)
        heard = [json.loads(text) for text in texts]
        self._require_same_operation([at for at, _, _ in heard])
        self._require_same_writes([written for _, _, written in heard])
        self._written = {}
        return [details for _, details, _ in heard]

    def note_write(self, name: str, value: torch.Tensor) -> None:
        """Have the next exchange check that all workers have written this by hand."""
        if self.size > 1:
            digest = f"{self._written.get(name, '')} {_digest(value)}"
            self._written[name] = hashlib.sha256(digest.encode()).hexdigest()

    def agree(self, what: str, details: Any, beside: Any = None) -> list[Any]:
        """Check that details are equal on all workers; return the `beside` of each, by rank.

        JSON carries both. Raises InvalidArgumentError, which shows the first difference.
        """
        heard = self.exchange(what, [details, beside])
        for rank, (other, _) in enumerate(heard):
            if other != heard[0][0]:
                mine, theirs = _first_difference(heard[0][0], other)
                raise InvalidArgumentError(
                    f"{what} differs between the workers: {self.place.tasks[0]} has {mine}, "
                    f"{self.place.tasks[rank]} has {theirs}; run the same program on all workers",
                    task=self.place.name,
                )
        return [beside for _, beside in heard]

    def sums(self, tensors: Sequence[torch.Tensor], pack_bytes: int = 0) -> list[torch.Tensor]:
        """Return the sum over workers of each tensor, the same bits on every worker.

        The workers have agreed on shapes and dtypes. About `pack_bytes` are sent together; 0 is no
        bound.
        """
        if self.size == 1:
            return list(tensors)
        return self._connected().sums(tensors, pack_bytes)

    def joined(self, tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
        """Return the tensors of all workers, by rank, whose first dimensions are the lengths."""
        if self.size == 1:
            return [tensor]
        return self._connected().joined(tensor, lengths)

    def spread(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the chief's tensors, which have the shapes and dtypes of these."""
        if self.size == 1:
            return list(tensors)
        return self._connected().spread(tensors)

    def _all_equal(self, digest: bytes) -> bool:
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        links = self._connected()
        found = links.joined_on_host(mine, [_DIGEST_BYTES] * self.size)
        return all(torch.equal(mine, other) for other in found)

    def _joined_bytes(self, text: bytes) -> list[bytes]:
        links = self._connected()
        size = torch.tensor([len(text)])
        sizes = links.joined_on_host(size, [1] * self.size)
        lengths = [int(each) for each in sizes]
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        found = links.joined_on_host(mine, lengths)
        return [bytes(each.tolist()) for each in found]

    def _require_same_operation(self, operations: Sequence[str]) -> None:
        for rank, operation in enumerate(operations):
            if operation != operations[0]:
                raise AbortedError(
                    f"The workers are not at the same point of the program: {self.place.tasks[0]} "
                    f"is at {operations[0]}, {self.place.tasks[rank]} at {operation}; run the same "
                    "program on all workers, and what all take part in outside of conditions on "
                    "the worker",
                    task=self.place.name,
                )

    def _require_same_writes(self, by_rank: Sequence[dict[str, str]]) -> None:
        for rank, written in enumerate(by_rank):
            for name in by_rank[0].keys() | written.keys():
                mine, theirs = by_rank[0].get(name), written.get(name)
                if mine != theirs:
                    raise InvalidArgumentError(
                        f"{name!r} was written by hand, and not alike: {self.place.tasks[0]} has "
                        f"written {_shown(mine)}, {self.place.tasks[rank]} {_shown(theirs)}, so "
                        "that its copies have parted; write the same value on all workers, outside "
                        "of conditions on the worker",
                        task=self.place.name,
                    )

    def _connected(self) -> Links:
        if self._links is None:
            self._links = Links(self.place, self._timeout)
            self.agree("The configuration", self._facts)
        return self._links

    def leave(self) -> None:
        """Close the connections; workers that still need this one fail."""
        self._links = None

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkerGroup:
        """Return a group that is not connected yet."""
        return WorkerGroup(self.place, self._timeout, self._facts)


def _digest(value: torch.Tensor) -> str:
    """Return what differs where values do. Large values are added up, where they are."""
    flat = value.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    whole = flat.view(_INTEGERS[flat.element_size()])
    if whole.numel() > _HASHED_ELEMENTS:
        return str(int(whole.sum(dtype=torch.int64)))
    return hashlib.sha256(whole.cpu().numpy().tobytes()).hexdigest()


def _shown(digest: str | None) -> str:
    return "nothing" if digest is None else f"what has the digest {digest[:8]}"


def _first_difference(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the first elements in which two lists differ."""
    if not (isinstance(one, list) and isinstance(other, list)):
        return one, other
    pairs = zip_longest(one, other, fillvalue="nothing more")
    return next((pair for pair in pairs if pair[0] != pair[1]), (one, other))


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
