"""Datasets of numbers, and what replicas are given of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import stratagem


def batches(count: int, size: int, **options: Any) -> DataLoader[Any]:
    """Return a loader of the numbers below `count`, as tensors of `size` rows."""
    return DataLoader(Numbers(count), batch_size=size, **options)


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """The numbers below `count`; a map-style dataset."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Streamed(torch.utils.data.IterableDataset[torch.Tensor]):
    """Tensors that come one after the other; an iterable dataset."""

    def __init__(self, elements: Iterable[torch.Tensor]) -> None:
        self._elements = list(elements)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._elements)


def pairs(count: int, size: int) -> DataLoader[Any]:
    """Return a loader of pairs of features [size, 2] and labels [size]."""
    features = torch.arange(2.0 * count).reshape(count, 2)
    return DataLoader(TensorDataset(features, torch.arange(count)), batch_size=size)


def shares(value: Any) -> list[Any]:
    """Return each replica's component of a distributed tensor, as a list."""
    if isinstance(value, stratagem.DistributedValues):
        return [component.tolist() for component in value.values]
    return [value.tolist()]


def steps(distributed: Iterable[Any]) -> list[list[Any]]:
    """Return what the replicas get in each step."""
    return [shares(element) for element in distributed]
