"""What workers tell each other of the order in which they read, and loaders that note it."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from stratagem._core.nests import leaves
from stratagem._input.reader import is_iterable, is_map_style
from stratagem._input.rounds import Position, Round, rows_in_chunk
from stratagem_proto.input_order import ENDED, BatchRead

# Of a large batch, so many elements of each tensor are looked at, of all rows.
_LOOKED_AT = 16_384


class ReadOrder:
    """Numbers the batches that a worker reads of one dataset, for others to compare.

    Args:
        dataset: The number of the dataset, which is the same on all workers.
        files: The files that the workers share out; without them they share out each batch.
    """

    def __init__(self, dataset: int, files: Sequence[Any] | None = None) -> None:
        self._dataset, self._passes = dataset, count()
        self._files = None if files is None else _digest_of_files(files)

    def read(self, position: Position) -> PassRead:
        """Return what describes the pass that begins now, at a position."""
        return PassRead(self._dataset, next(self._passes), self._files, position)


class PassRead:
    """Describes what is read in one pass."""

    def __init__(self, dataset: int, number: int, files: int | None, position: Position) -> None:
        self._dataset, self._number, self._files = dataset, number, files
        self._next = 0 if position.states is None else int(position.states[0]["elements"])
        self._is_described = False

    def describe(self, round_: Round | None) -> BatchRead | None:
        """Return what others are to compare once a round was read, None at the end of the pass."""
        if self._files is not None:
            if self._is_described and round_ is not None:
                return None
            # At the end once more, which is when the first to begin hears of a difference.
            self._is_described = True
            return BatchRead(self._dataset, self._number, None, self._files)
        digest = ENDED if round_ is None else round_.digest
        if digest is None:
            return None
        number, self._next = self._next, self._next + 1
        return BatchRead(self._dataset, self._number, number, digest)


def digest_of_indices(indices: Iterable[Any]) -> int:
    """Return a digest of the indices of a batch, as samplers draw them."""
    return _digest(map(_described, indices))


class ContentsDigest:
    """Makes digests of what the elements of one dataset contain, in the order of a pass.

    Integers, flags and strings count, and floating-point values only until one of those has told
    two rows apart: they may be rounded, or augmented, differently on each machine. So a constant
    mask hides nothing, and labels are enough.
    """

    def __init__(self) -> None:
        self._exact_tell = False

    def of_batch(self, batch: Any) -> int:
        """Return the digest of a nest whose tensors and arrays have the same number of rows."""
        exact, rough = _parted(batch)
        return self._digest(exact, rough, any(map(_has_different_rows, leaves(batch))))

    def beside(self, batch: Any) -> tuple[int, Any]:
        """Return the digest of a batch, and the batch."""
        return self.of_batch(batch), batch

    def of_samples(self, samples: Sequence[Any]) -> int:
        """Return the digest of samples that are to be collated; 0 if all are of unknown types."""
        parted = [_parted(sample) for sample in samples]
        exact = [b"".join(each) for each, _ in parted if each]
        rough = [one for _, each in parted for one in each]
        if not exact and not rough:
            return 0
        return self._digest(exact, rough, len(set(exact)) > 1)

    def _digest(self, exact: Sequence[bytes], rough: Sequence[Any], varies: bool) -> int:
        self._exact_tell |= varies
        return _digest(exact if self._exact_tell else [*exact, *map(_described, rough)])


def _parted(nest: Any) -> tuple[list[bytes], list[Any]]:
    """Return descriptions of the exact leaves of a nest, and the floating-point ones."""
    exact: list[bytes] = []
    rough: list[Any] = []
    for leaf in leaves(nest):
        if _is_rough(leaf):
            rough.append(leaf)
        elif described := _described(leaf):
            exact.append(described)
    return exact, rough


def _is_rough(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point() or leaf.is_complex()
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "fc"
    return isinstance(leaf, float | complex | np.inexact)


def _has_different_rows(leaf: Any) -> bool:
    if _is_rough(leaf) or not isinstance(leaf, np.ndarray | torch.Tensor) or leaf.ndim == 0:
        return False
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biu":
        return len(set(map(str, leaf.tolist()))) > 1
    if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
        return False
    return bool(torch.as_tensor(leaf != leaf[:1]).any())


def _digest(parts: Iterable[bytes]) -> int:
    hashed = blake2b(digest_size=8)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    # Digests travel as int64 tensors through loaders; 0 is the end of a pass.
    return max(int.from_bytes(hashed.digest(), "little") >> 1, 1)


def _described(value: Any) -> bytes:
    """Return bytes that tell an index, or a leaf, from others; b"" where its type is unknown."""
    if isinstance(value, str | bytes | bytearray):
        return value.encode() if isinstance(value, str) else bytes(value)
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        with suppress(OverflowError):
            return np.array(value, np.int64).tobytes()
    if isinstance(value, list | tuple):
        return b"(" + b",".join(map(_described, value)) + b")"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor) and (value.dim() or value.is_floating_point()):
        return _sampled(value)
    if isinstance(value, np.ndarray):
        return b"(" + b",".join(map(_described, value.tolist())) + b")"
    try:
        return str(operator.index(value)).encode()
    except (TypeError, ValueError):
        # The text of any other object may have its address.
        known = isinstance(value, float | complex | np.inexact)
        return repr(complex(value)).encode() if known else b""


def _sampled(tensor: torch.Tensor) -> bytes:
    if tensor.layout is torch.sparse_coo:
        stored = tensor.detach().coalesce()
        return _sampled(stored.indices()) + _sampled(stored.values())
    if tensor.layout is torch.jagged:
        offsets = tensor.offsets()  # type: ignore[attr-defined]
        return _sampled(offsets) + _sampled(tensor.values())
    if tensor.is_nested or tensor.layout is not torch.strided:
        return b""
    form = str(tuple(tensor.shape)).encode()
    rows = (
        tensor.detach().reshape(len(tensor) if tensor.dim() else 1, -1) if tensor.numel() else None
    )
    if rows is None:
        return form
    columns = max(_LOOKED_AT // len(rows), 1)
    rows = rows[:, :: -(-rows.shape[1] // columns)]
    return form + rows.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest_of_files(files: Sequence[Any]) -> int:
    """Return a digest of the names of files, wherever each machine has them."""
    if not all(isinstance(each, str | os.PathLike) for each in files):
        return digest_of_indices(files)
    names = [os.path.normpath(os.fspath(each)) for each in files]
    # There is none where some are relative and some absolute.
    with suppress(ValueError):
        names = [os.path.relpath(each, os.path.commonpath(names)) for each in names]
    return digest_of_indices(names)


def can_read_by_index(loader: DataLoader[Any]) -> bool:
    """Return whether the rows of a batch can be read without the rest of it.

    With another `collate_fn` the rows of a batch may depend on each other, or be no samples at all.
    """
    return (
        not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and loader.collate_fn is default_collate
    )


class NotedLoader:
    """Gives what a loader gives, and with it a digest of what that is made of.

    Elements are triples (digest, rows in a whole chunk, element). The digest is one of the indices
    of the whole batch, or of the samples of an iterable dataset, before they are collated.

    Args:
        loader: A `DataLoader`, of no other class: subclasses may read in ways of their own.
        chunks: Into how many a batch is cut.
        own: The numbers of those to read; None for whole batches. Where the own ones have no rows,
            the number of rows in a chunk is 0, and the element is a row of others, which shows what
            the data look like.
    """

    def __init__(
        self, loader: DataLoader[Any], chunks: int = 1, own: Sequence[int] | None = None
    ) -> None:
        self._original, self._indices = loader, None
        if isinstance(loader.dataset, IterableDataset):
            collate = _NotedSamples(loader.collate_fn, loader.batch_size is not None)
            sizes = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
            self._loader = _remade(loader, collate_fn=collate, **sizes)
            return
        batches = loader.batch_sampler
        self._indices = _NotedIndices(loader.sampler if batches is None else batches, chunks, own)
        if batches is None:
            self._loader = _remade(loader, sampler=self._indices, batch_size=None)
        else:
            self._loader = _remade(loader, batch_sampler=self._indices)

    @property
    def original(self) -> DataLoader[Any]:
        """The loader, with its samplers and generators."""
        return self._original

    def __len__(self) -> int:
        return len(self._original)

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        elements = iter(self._loader)
        if self._indices is None:
            return ((digest, 0, element) for digest, element in elements)
        # Loaders draw indices ahead, and give their elements in that order. Another pass draws into
        # another queue.
        drawn = self._indices.drawn
        return ((*drawn.popleft(), element) for element in elements)


def _remade(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    given = {
        "collate_fn": loader.collate_fn,
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }
    return DataLoader(loader.dataset, **{**given, **changed})


class _NotedIndices:
    """Draws batches of indices, and notes digests of them.

    Attributes:
        drawn: What was noted of the batches of the latest pass that were not taken yet.
    """

    def __init__(self, source: Iterable[Any], chunks: int, own: Sequence[int] | None) -> None:
        self._source, self._chunks, self._own = source, chunks, own
        self.drawn: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type] # or a TypeError

    def __iter__(self) -> Iterator[Any]:
        self.drawn = deque()
        return self._draw(self.drawn)

    def _draw(self, drawn: deque[tuple[int, int]]) -> Iterator[Any]:
        for indices in self._source:
            if self._own is None:
                drawn.append((digest_of_indices([indices]), 0))
                yield indices
                continue
            batch = list(indices)
            size = rows_in_chunk(len(batch), self._chunks)
            chunks = (batch[number * size : (number + 1) * size] for number in self._own)
            rows = [index for chunk in chunks for index in chunk]
            drawn.append((digest_of_indices([batch]), size if rows else 0))
            yield rows or batch[:1]


class _NotedSamples:
    """Collates samples, or single elements, and gives a digest of them."""

    def __init__(self, collate: Callable[[Any], Any], batches: bool) -> None:
        self._collate, self._batches = collate, batches
        self._digests = ContentsDigest()

    def __call__(self, samples: Any) -> tuple[int, Any]:
        # Before they are collated, which may change them.
        digests = self._digests
        digest = digests.of_samples(samples) if self._batches else digests.of_batch(samples)
        collated = self._collate(samples)
        return digest or self._digests.of_batch(collated), collated


def samples(dataset: Any, indices: list[Any]) -> list[Any]:
    """Return the samples of a map-style dataset at some indices."""
    many = getattr(dataset, "__getitems__", None)
    found: list[Any] = many(indices) if many else [dataset[one] for one in indices]
    return found


def can_be_read_again(dataset: Any) -> bool:
    """Return whether a pass leaves no traces, but for the state of torch's generators."""
    if isinstance(dataset, NotedLoader):
        dataset = dataset.original
    if isinstance(dataset, list | tuple) or not is_iterable(dataset):
        return is_map_style(dataset)
    if type(dataset) is not DataLoader or isinstance(dataset.dataset, IterableDataset):
        return False
    batches = dataset.batch_sampler
    samplers = [dataset.sampler, batches, getattr(batches, "sampler", None)]
    return all(
        one is None
        or isinstance(one, list | tuple | range)
        or type(one).__module__ == "torch.utils.data.sampler"
        for one in samplers
    )
