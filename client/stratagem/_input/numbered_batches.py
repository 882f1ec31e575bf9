"""Data whose batches can be read one by one, by their numbers."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from stratagem._input.own_rows import samples
from stratagem._input.reader import as_tensors, is_dataset, length
from stratagem._input.sharding import require_undivided, undisturbed
from stratagem_proto.errors import InvalidArgumentError

_drawing = threading.Lock()

Order = Sequence[Any]
"""What there is to read of each batch of a pass, in the order of their numbers."""


def require_numbered(dataset: Any) -> None:
    """Check that batches of a dataset can be read by their numbers.

    Raises:
        InvalidArgumentError: They cannot, or it reads only a part of its data.
    """
    require_undivided(dataset)
    source = dataset.dataset if isinstance(dataset, DataLoader) else dataset
    if (
        isinstance(source, IterableDataset)
        or (dataset is source and not _map_style(dataset))
        or length(dataset) is None
    ):
        raise InvalidArgumentError(
            f"{type(dataset).__name__} cannot be read exactly once, because its "
            "batches have no numbers: pass a DataLoader over a dataset with "
            "__getitem__ and __len__, such a dataset, a list of batches, or a function "
            "without arguments that returns one; or leave exactly_once away"
        )


def seed_of(dataset: Any) -> int:
    """Return by what a dataset is shuffled: its own generator's seed, or a new one."""
    generator = getattr(dataset, "generator", None)
    if isinstance(generator, torch.Generator):
        return generator.initial_seed()
    return int(torch.empty((), dtype=torch.int64).random_())


class NumberedBatches:
    """The batches of a dataset, as its loader makes them.

    Args:
        dataset: What `require_numbered` lets pass.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._loader = dataset if isinstance(dataset, DataLoader) else None

    def __len__(self) -> int:
        return len(self._dataset)

    def order(self, seed: int, number: int) -> Order:
        """Return the order of a pass, the same wherever the data are the same.

        Args:
            seed: Of all passes.
            number: Of the pass, from 0.
        """
        if self._loader is None:
            return range(len(self))
        mixed = int(np.random.SeedSequence([seed, number]).generate_state(2)[0])
        batches = self._loader.batch_sampler
        sampler = self._loader.sampler if batches is None else batches
        # Samplers without a generator of their own draw from those of the process.
        with _drawing, undisturbed(()):
            torch.default_generator.manual_seed(mixed)
            random.seed(mixed)
            np.random.seed(mixed % 2**32)
            return list(_seeded(sampler, mixed))

    def read(self, where: Any) -> Any:
        """Return a batch, with tensors as leaves; reads nothing else."""
        loader = self._loader
        if loader is None:
            return as_tensors(self._dataset[where])
        if loader.batch_sampler is None:
            return as_tensors(loader.collate_fn(loader.dataset[where]))
        return as_tensors(loader.collate_fn(samples(loader.dataset, where)))


def _map_style(dataset: Any) -> bool:
    return is_dataset(dataset) and hasattr(type(dataset), "__getitem__")


def _seeded(sampler: Any, seed: int) -> Any:
    """Return a copy of a sampler that draws by a seed, and so does what is in it."""
    seeded = copy.copy(sampler)
    if hasattr(seeded, "generator"):
        seeded.generator = torch.Generator().manual_seed(seed)
    if getattr(seeded, "sampler", None) is not None:
        seeded.sampler = _seeded(seeded.sampler, seed)
    return seeded
