"""Going over data so that what the next batch needs is known during the step of the present one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

import torch
from torch import nn

from stratagem._core.nests import leaves
from stratagem._input.iterator import DistributedIterator
from stratagem._input.reader import Peekable, StatefulDataset, length
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

Needs = TypeVar("Needs")

Lookups: TypeAlias = Callable[[Any], Iterable[tuple[nn.Module | torch.Tensor, torch.Tensor]]]
"""Returns what a batch looks up: embeddings or their weights, each with rows or keys."""


class BatchFetcher(Protocol[Needs]):
    """Gets what batches need.

    Of each batch `ask` is called first, perhaps some steps before its own, and then `present`.
    """

    @property
    def batches_ahead(self) -> int:
        """What how many batches behind the present one need is to be asked for."""
        ...

    def parts_of(self, batch: Any) -> Sequence[Any]:
        """Return the part of a batch that each replica of this process gets."""
        ...

    def ask(self, parts: Sequence[Any]) -> Needs:
        """Return what a batch needs, of which the parts of the replicas are given; do not wait."""
        ...

    def expect(self, needs: Needs, place: int) -> None:
        """Have that come before the step of the batch, so many places behind the present one."""
        ...

    def present(self, owner: object, needs: Needs | None) -> None:
        """Have the next run start with what a batch needs, and with nothing else of its owner's."""
        ...


@dataclass(frozen=True)
class _RequestedBatch(Generic[Needs]):
    """A batch that was read, and what was asked for.

    Attributes:
        needs: What it needs.
        tensors: Those of the batch, each with torch's count of the writes to it.
    """

    needs: Needs
    tensors: Sequence[tuple[torch.Tensor, int]]

    def require_unchanged(self) -> None:
        """Refuse a batch that was written after it was read.

        Raises:
            InvalidArgumentError: It was.
        """
        if any(tensor._version != version for tensor, version in self.tensors):
            raise InvalidArgumentError(
                "a batch was written after it had been read ahead, so that it is no longer what "
                "the loader has given: a loader that fills the same tensors for each batch has to "
                "give a copy of them to strategy.lookahead, as by tensor.clone()"
            )


class Lookahead(Iterable[Any], Generic[Needs]):
    """The batches of `data`, of which the next one or two are read before their turn.

    Each iteration is a pass over the data. Where these are an iterator there is one pass, with
    which each iteration goes on.

    Args:
        data: A loader, a dataset or an iterator.
        fetcher: Gets what batches need.
    """

    def __init__(self, data: Iterable[Any], fetcher: BatchFetcher[Needs]) -> None:
        self._data, self._fetcher = data, fetcher
        self._only = self._pass() if isinstance(data, Iterator) else None

    def __iter__(self) -> Iterator[Any]:
        return self._only or self._pass()

    def _pass(self) -> _Pass[Needs]:
        return _Pass(self._data, iter(self._data), self._fetcher)

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            InvalidTypeError: The data have no length.
        """
        found = length(self._data)
        if found is None:
            raise InvalidTypeError(
                "The data do not know their length; iterate until they end, or give them __len__"
            )
        return found

    def __bool__(self) -> bool:
        return True


class _Pass(Iterator[Any], Generic[Needs]):
    """One pass over the data.

    A distributed iterator knows itself what was read and not taken, so that its position counts
    what was taken.
    """

    def __init__(self, data: object, items: Iterator[Any], fetcher: BatchFetcher[Needs]) -> None:
        _require_alone(data, items)
        self.items = items
        self._fetcher = fetcher
        self._own = Peekable(items) if not isinstance(items, DistributedIterator) else None
        # What was asked for, by the place of the batch in what was read.
        self._read: Peekable[Any] | None = None
        self._requested: dict[int, _RequestedBatch[Needs]] = {}
        self.has_ended = False
        _passes.add(self)

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: The data have ended.
            InvalidArgumentError: The batch was changed since it was read.
            Exception: Reading the batch has raised it, or finding out what the batch needs. In the
                second case the batch is not taken.
        """
        read = self._upcoming()
        self._requested = {at: asked for at, asked in self._requested.items() if at >= read.taken}
        head = read.peek(0)
        if head is None:
            # The end, an error, or the padding that other workers wait for.
            self._fetcher.present(self, None)
            batch = self._taken()
            self._fetcher.present(self, self._fetcher.ask(self._fetcher.parts_of(batch)))
            return batch
        asked = self._ask(read, 0)
        self._fetcher.present(self, asked.needs)
        # Whoever is interrupted in the midst of that finds the batch again.
        self._read_ahead(read)
        asked.require_unchanged()
        return self._taken()

    def _upcoming(self) -> Peekable[Any]:
        """Return what is read, in which nothing was asked for if the iterator was set elsewhere."""
        if self._own is not None:
            read = self._own
        else:
            assert isinstance(self.items, DistributedIterator)
            read = self.items._opened()
        if read is not self._read:
            self._requested.clear()
            self._read = read
        return read

    def _taken(self) -> Any:
        try:
            return next(self.items if self._own is None else self._own)
        except StopIteration:
            self.has_ended = True
            raise

    def _read_ahead(self, read: Peekable[Any]) -> None:
        for place in range(1, self._fetcher.batches_ahead + 1):
            if read.peek(place) is None:
                return
            # What is raised comes with the batch.
            with suppress(Exception):
                self._fetcher.expect(self._ask(read, place).needs, place)

    def _ask(self, read: Peekable[Any], place: int) -> _RequestedBatch[Needs]:
        at = read.taken + place
        if at not in self._requested:
            peeked = read.peek(place)
            assert peeked is not None, "the caller has looked"
            (item,) = peeked
            parts = self._fetcher.parts_of(item) if self._own is not None else item.parts
            needs = self._fetcher.ask(parts)
            tensors = [leaf for leaf in leaves([*parts]) if isinstance(leaf, torch.Tensor)]
            counted = [(leaf, leaf._version) for leaf in tensors if not leaf.is_inference()]
            self._requested[at] = _RequestedBatch(needs, counted)
        return self._requested[at]


_passes: WeakSet[_Pass[Any]] = WeakSet()


def _require_alone(data: object, items: Iterator[Any]) -> None:
    """Refuse what would read another position than the program thinks.

    Raises:
        InvalidArgumentError: Another pass reads the iterator, or it knows its own position.
    """
    if any(one.items is items and not one.has_ended for one in [*_passes]):
        raise InvalidArgumentError(
            f"{items!r:.100} is gone over by another strategy.lookahead, which has read batches of "
            "it ahead; go on with that one, or give each of them an iterator of its own"
        )
    if isinstance(items, DistributedIterator):
        return
    for one in (data, items):
        if isinstance(one, StatefulDataset):
            raise InvalidArgumentError(
                f"{one!r:.100} knows its position, which would count batches that were read ahead "
                "and not trained; give strategy.lookahead an iterator over "
                "strategy.experimental_distribute_dataset(...) of it, whose position counts what "
                "it has given out"
            )
