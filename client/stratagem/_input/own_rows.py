"""Loaders that read of each batch only the rows of one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from stratagem._input.splitting import rows_in_chunk


def can_read_by_index(dataset: Any) -> bool:
    """Return whether the rows of a batch can be read without the rest of it.

    With another `collate_fn` the rows of a batch may depend on each other, or be no samples at all;
    and subclasses may read in ways of their own.
    """
    return (
        type(dataset) is DataLoader
        and not isinstance(dataset.dataset, IterableDataset)
        and dataset.batch_sampler is not None
        and dataset.collate_fn is default_collate
    )


def reading_own_rows(loader: DataLoader[Any], chunks: int, own: Sequence[int]) -> DataLoader[Any]:
    """Return a loader of the same batches that reads some chunks of each.

    Args:
        loader: What `can_read_by_index` accepts.
        chunks: Into how many a batch is cut.
        own: The numbers of those to read.

    Returns:
        A loader of pairs (rows in a whole chunk, the rows of the own chunks). Where these have no
        rows the first number is 0, and the second is a row of others, which shows what the data
        look like.
    """
    assert loader.batch_sampler is not None
    return DataLoader(
        _Rows(loader.dataset),
        batch_sampler=_OwnIndices(loader.batch_sampler, chunks, own),
        collate_fn=_Collated(loader.collate_fn),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


class _Indices(list[Any]):
    """The indices to read of one batch, and how many rows a whole chunk of it has."""

    def __init__(self, indices: Iterable[Any], chunk_rows: int) -> None:
        super().__init__(indices)
        self.chunk_rows = chunk_rows


@dataclass(frozen=True)
class _OwnIndices:
    batch_sampler: Iterable[list[Any]]
    chunks: int
    own: Sequence[int]

    @property
    def sampler(self) -> Any:
        """What draws the indices, if the batches come of a sampler."""
        return getattr(self.batch_sampler, "sampler", None)

    def __len__(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type] # or a TypeError

    def __iter__(self) -> Iterator[_Indices]:
        for batch in self.batch_sampler:
            yield self._own_of(list(batch))

    def _own_of(self, batch: list[Any]) -> _Indices:
        size = rows_in_chunk(len(batch), self.chunks)
        chunks = (batch[number * size : (number + 1) * size] for number in self.own)
        indices = [index for chunk in chunks for index in chunk]
        return _Indices(indices or batch[:1], size if indices else 0)


class _Rows(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, indices: _Indices) -> tuple[int, list[Any]]:
        return indices.chunk_rows, samples(self._dataset, list(indices))


def samples(dataset: Any, indices: list[Any]) -> list[Any]:
    """Return the samples of a map-style dataset at some indices."""
    many = getattr(dataset, "__getitems__", None)
    found: list[Any] = many(indices) if many else [dataset[one] for one in indices]
    return found


@dataclass(frozen=True)
class _Collated:
    collate: Callable[[list[Any]], Any]

    def __call__(self, read: Any) -> tuple[int, Any]:
        size, samples = read
        return size, self.collate(samples)
