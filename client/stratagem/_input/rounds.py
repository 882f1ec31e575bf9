"""What the replicas of a worker get in each step: cut from batches, and on their devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from stratagem._core.distributed_values import PerReplica
from stratagem._core.nests import leaves, map_leaves
from stratagem._input.reader import Reader, State
from stratagem_proto.errors import InvalidArgumentError, UnbatchedInputError


def split(batch: Any, parts: int) -> list[Any]:
    """Cut `batch` into consecutive parts along the first dimension of its leaves.

    Each part has ceil(rows / parts) rows; the last ones may have fewer, or none.

    Args:
        batch: A nest of tensors of shape [rows, ...], and of arrays of strings; sparse_coo tensors
            and ragged ones, which are nested tensors of layout torch.jagged, do as well. None stays
            None in each part.
        parts: How many.

    Returns:
        The parts, which share memory with `batch` where torch lets them.

    Raises:
        UnbatchedInputError: A leaf has no first dimension.
        InvalidArgumentError: Leaves differ in their numbers of rows, or have a layout that cannot
            be split.

    Spec: INP-11 to INP-13, INP-20, INP-24, INP-25.
    """
    return cut(batch, rows_in_chunk(rows_in(batch), parts), parts)


def rows_in_chunk(rows: int, parts: int) -> int:
    """Return the number of rows of each part of so many rows but the last ones."""
    return -(-rows // parts)


def cut(batch: Any, size: int, parts: int) -> list[Any]:
    """Cut `batch` as `split` does, into parts of `size` rows."""
    rows = rows_in(batch)
    borders = [min(index * size, rows) for index in range(parts + 1)]
    return [_rows_between(batch, start, end) for start, end in pairwise(borders)]


def without_rows(element: Any) -> Any:
    """Return a nest like `element` whose tensors have 0 rows.

    It has the dtypes and inner shapes of `element`; a scalar becomes a vector of length 0. It is
    what a replica gets that has no data in a round.

    Spec: INP-27, INP-28.
    """
    return map_leaves(_emptied, element)


def _emptied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and not leaf.dim():
        return leaf.new_empty(0)
    return _leaf_rows(leaf, 0, 0) if _has_rows(leaf) else leaf


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | np.ndarray) and leaf.ndim > 0


def rows_in(batch: Any) -> int:
    """Return the number of rows that the leaves of `batch` have.

    Raises:
        UnbatchedInputError: A leaf has no first dimension.
        InvalidArgumentError: Leaves differ in their numbers of rows.
    """
    columns = [leaf for leaf in leaves(batch) if leaf is not None]
    for leaf in columns:
        if not _has_rows(leaf):
            raise UnbatchedInputError(
                f"Unable to get batched dataset: an element has the leaf {leaf!r}, "
                "which has no rows to share among several replicas; batch the dataset, "
                "for instance by DataLoader(dataset, batch_size=...)"
            )
    # A nested tensor that is not jagged has no shape to ask.
    sizes = sorted(
        {int(one.size(0)) if isinstance(one, torch.Tensor) else len(one) for one in columns}
    )
    if len(sizes) > 1:
        raise InvalidArgumentError(
            f"The leaves of a batch have {sizes} rows, so it cannot be split between "
            "replicas; let all of them have the same number"
        )
    return sizes[0] if sizes else 0


def _rows_between(batch: Any, start: int, end: int) -> Any:
    def rows_of(leaf: Any) -> Any:
        return None if leaf is None else _leaf_rows(leaf, start, end)

    return map_leaves(rows_of, batch)


def _leaf_rows(leaf: Any, start: int, end: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf[start:end]
    if leaf.layout is torch.sparse_coo:
        return leaf.narrow_copy(0, start, end - start)
    if leaf.layout is torch.jagged and leaf._ragged_idx == 1:
        return _ragged_rows(leaf, start, end)
    if leaf.layout is torch.strided and not leaf.is_nested:
        return leaf.narrow(0, start, end - start)
    raise InvalidArgumentError(
        f"A {'nested ' * leaf.is_nested}tensor of layout {leaf.layout} cannot be split "
        "between replicas; make it dense, sparse_coo, or a nested tensor of layout "
        "torch.jagged that is ragged in its second dimension"
    )


def _ragged_rows(ragged: Any, start: int, end: int) -> torch.Tensor:
    # torch slices no nested tensor along the batch, so it is cut by its parts. Those of a narrowed
    # one have gaps between them.
    whole = ragged if ragged.lengths() is None else ragged.contiguous()
    offsets = whole.offsets()
    values = whole.values()[offsets[start] : offsets[end]]
    return torch.nested.nested_tensor_from_jagged(values, offsets[start : end + 1] - offsets[start])


@dataclass(frozen=True)
class LeafSpec:
    """The form of a leaf.

    Attributes:
        kind: Its class.
        shape: Its shape, None if it has none; the first dimension of a tensor is None, as batches
            may be short, and so is a ragged one.
        dtype: Its dtype, None if it has none.
    """

    kind: type
    shape: tuple[int | None, ...] | None = None
    dtype: torch.dtype | None = None

    def is_compatible_with(self, value: Any) -> bool:
        """Return whether a leaf has this form."""
        other = _leaf_spec(value)
        if (self.kind, self.dtype) != (other.kind, other.dtype):
            return False
        if self.shape is None or other.shape is None:
            return self.shape is other.shape
        sizes = zip(self.shape, other.shape, strict=False)
        same = all(size in (None, found) for size, found in sizes)
        return len(self.shape) == len(other.shape) and same


@dataclass(frozen=True)
class PerReplicaSpec:
    """The form of a `PerReplica`.

    Attributes:
        specs: The form of each component.
    """

    specs: Sequence[Any]

    def is_compatible_with(self, value: Any) -> bool:
        """Return whether a `PerReplica` has components of these forms. Spec: VAL-9."""
        if not isinstance(value, PerReplica) or len(value.values) != len(self.specs):
            return False
        pairs = zip(self.specs, value.values, strict=True)
        return all(spec.is_compatible_with(part) for spec, part in pairs)


def spec_of(parts: Sequence[Any]) -> Any:
    """Return the nest of specs of a round, given its parts."""
    specs = [element_spec(part) for part in parts]
    if len(specs) == 1:
        return specs[0]
    return map_leaves(lambda *each: PerReplicaSpec(each), *specs)


def element_spec(element: Any) -> Any:
    """Return the nest of specs of an element."""
    return map_leaves(_leaf_spec, element)


def exact_spec(value: Any) -> Any:
    """Return the nest of specs of one value: with its own sizes, also in the first dimension."""

    def exact(leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            return PerReplicaSpec([exact_spec(part) for part in leaf.values])
        spec = _leaf_spec(leaf)
        return replace(spec, shape=tuple(leaf.shape)) if spec.shape else spec

    return map_leaves(exact, value)


def _leaf_spec(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return LeafSpec(type(leaf))
    inner = (size if isinstance(size, int) else None for size in leaf.shape[1:])
    return LeafSpec(torch.Tensor, (None, *inner) if leaf.dim() else (), leaf.dtype)


@dataclass(frozen=True)
class Position:
    """Where reading stands.

    Attributes:
        states: Of each reader; None is the beginning.
        taken: How many rounds were taken of the element that comes next.
    """

    states: Sequence[State] | None = None
    taken: int = 0


BEGINNING = Position()


@dataclass(frozen=True)
class Round:
    """The input of one step.

    Attributes:
        parts: A nest for each replica of this worker, in replica order.
        position: The one after it.
        digest: Of what workers that read one order have to find here; None where they do not.
    """

    parts: Sequence[Any]
    position: Position
    digest: int | None = None


class Dealt(NamedTuple):
    """What becomes of what was read at once.

    Attributes:
        rounds: The parts of each replica, of one round or of several.
        digest: As in `Round`.
    """

    rounds: list[Sequence[Any]]
    digest: int | None = None


class Dealing(Protocol):
    """How elements of datasets become rounds."""

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Read what comes next and return the parts of each replica.

        Raises:
            StopIteration: The data have ended.
        """

    def steps(self, lengths: Sequence[int]) -> int | None:
        """Return the number of rounds in datasets of these lengths, if it is known."""


def _undigested(element: Any) -> tuple[None, Any]:
    return None, element


@dataclass(frozen=True)
class SplitBatches:
    """Each element is a batch for all replicas in sync, which is cut into chunks.

    Attributes:
        chunks: Into how many.
        turns: The numbers of those that this worker's replicas take, in replica order, for each
            step that an element lasts.
        digested: Returns the digest and the batch of an element, where the workers have to read the
            same.

    Spec: INP-1, INP-10 to INP-16, INP-27.
    """

    chunks: int
    turns: Sequence[range]
    digested: Callable[[Any], tuple[int | None, Any]] = _undigested

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Split the next element of the only reader.

        A turn for which no rows are left is no round, unless it is the only one.
        """
        digest, element = self.digested(next(readers[0]))
        if self.chunks == 1:
            return Dealt([[element]], digest)
        chunks = split(element, self.chunks)
        later = [turn for turn in self.turns[1:] if rows_in(chunks[turn.start])]
        turns = [self.turns[0], *later]
        return Dealt([[chunks[number] for number in turn] for turn in turns], digest)

    def steps(self, lengths: Sequence[int]) -> int | None:
        """One for each element; a longer element lasts by the rows it has."""
        return lengths[0] if len(self.turns) == 1 else None


@dataclass(frozen=True)
class CutOwnRows:
    """Each element has the rows of this worker alone, behind a digest and the size of their chunks.

    Attributes:
        replicas: How many this worker has.

    Spec: INP-11, INP-15.
    """

    replicas: int

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Cut the next element of the only reader."""
        digest, size, rows = next(readers[0])
        return Dealt([cut(rows, int(size), self.replicas)], int(digest))

    def steps(self, lengths: Sequence[int]) -> int:
        """One for each element."""
        return lengths[0]


_MISSING = object()


@dataclass(frozen=True)
class DealElements:
    """Each element is for one replica.

    The replicas read in turn from one reader, or each from its own. In the last round those without
    data get tensors with 0 rows.

    Attributes:
        replicas: How many there are.
        whole_rounds: Drop a last round that has not an element for each of them.

    Spec: INP-2, INP-6, INP-28 to INP-30b, INP-35.
    """

    replicas: int
    whole_rounds: bool = False

    def rounds(self, readers: Sequence[Iterator[Any]]) -> Dealt:
        """Take one element for each replica."""
        turns = [readers[index % len(readers)] for index in range(self.replicas)]
        elements = [next(reader, _MISSING) for reader in turns]
        present = [element for element in elements if element is not _MISSING]
        if len(present) < (self.replicas if self.whole_rounds else 1):
            raise StopIteration
        parts = [
            without_rows(present[0]) if element is _MISSING else element for element in elements
        ]
        return Dealt([parts])

    def steps(self, lengths: Sequence[int]) -> int:
        """Enough for the longest dataset, or for as many as are whole."""
        if len(lengths) > 1:
            return min(lengths) if self.whole_rounds else max(lengths)
        rounded_up = 0 if self.whole_rounds else self.replicas - 1
        return (lengths[0] + rounded_up) // self.replicas


class DealtRounds(Iterator[Round]):
    """The rounds that `dealing` makes of what `readers` read.

    Args:
        readers: They stand where `position` says.
        dealing: How.
        position: Where to begin.
    """

    def __init__(self, readers: Sequence[Reader], dealing: Dealing, position: Position) -> None:
        self._readers = readers
        self._dealing = dealing
        self._position = position
        self._rest: deque[Sequence[Any]] = deque()
        self._digest: int | None = None

    def __next__(self) -> Round:
        if not self._rest:
            rounds, self._digest = self._dealing.rounds(self._readers)
            self._rest.extend(rounds[self._position.taken :])
        parts = self._rest.popleft()
        self._position = self._after()
        return Round(parts, self._position, self._digest)

    def _after(self) -> Position:
        if self._rest:
            return Position(self._position.states, self._position.taken + 1)
        return Position([reader.state_dict() for reader in self._readers])


class TransferredRounds(Iterator[Round]):
    """The rounds of `rounds`, each part on the device of its replica.

    Args:
        rounds: Rounds on the host.
        devices: One for each replica; None leaves the part where it is.
        aside: Copy beside the work that GPUs do, to be used while that goes on: this thread then
            waits until the copies are there.
    """

    def __init__(
        self, rounds: Iterator[Round], devices: Sequence[torch.device | None], aside: bool
    ) -> None:
        self._rounds = rounds
        self._devices = devices
        gpus = {device for device in devices if device and device.type == "cuda"}
        self._streams = [torch.cuda.Stream(gpu) for gpu in gpus if aside]

    def __next__(self) -> Round:
        round_ = next(self._rounds)
        with ExitStack() as streams:
            for stream in self._streams:
                streams.enter_context(torch.cuda.stream(stream))
            pairs = zip(round_.parts, self._devices, strict=True)
            parts = [
                part if device is None else map_leaves(partial(_copied, device), part)
                for part, device in pairs
            ]
        for stream in self._streams:
            stream.synchronize()
        return replace(round_, parts=parts)


def _copied(device: torch.device, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if device.type != "cuda" or leaf.is_cuda or leaf.layout is not torch.strided:
        return leaf.to(device)
    # Only from pinned memory can the GPU copy while the host goes on.
    return leaf.pin_memory().to(device, non_blocking=True)


def hand_over(round_: Round) -> None:
    """Let the work that this thread queues on GPUs use the tensors of a round.

    Without this the memory of a tensor that was copied aside could be given to the next one while
    queued work still reads it.
    """
    for leaf in leaves(list(round_.parts)):
        if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
            holding: Sequence[torch.Tensor] = (leaf,)
            if leaf.layout is torch.sparse_coo:
                holding = leaf._indices(), leaf._values()
            elif leaf.layout is torch.jagged:
                # Declared by torch's private class of such tensors only.
                holding = leaf.values(), leaf.offsets()  # type: ignore[attr-defined]
            for part in holding:
                part.record_stream(torch.cuda.current_stream(leaf.device))
