"""Loaders that say which rows a batch is made of, and read only those of one worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from stratagem._input.read_order import ContentsDigest, digest_of_indices
from stratagem._input.reader import is_iterable, is_map_style
from stratagem._input.splitting import rows_in_chunk


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
        return _paired(elements, self._indices.drawn)


def _paired(
    elements: Iterator[Any], drawn: deque[tuple[int, int]]
) -> Iterator[tuple[int, int, Any]]:
    # Loaders draw indices ahead, and give their elements in that order.
    for element in elements:
        yield (*drawn.popleft(), element)


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
