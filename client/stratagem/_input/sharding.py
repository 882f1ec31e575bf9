"""Which share of the data a worker reads, and data whose batches are read by their numbers."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from stratagem._core.options import InputContext
from stratagem._input.options import AutoShardPolicy
from stratagem._input.read_order import (
    ContentsDigest,
    NotedLoader,
    ReadOrder,
    can_read_by_index,
    samples,
)
from stratagem._input.reader import as_tensors, is_dataset, is_map_style, length
from stratagem._input.rounds import CutOwnRows, Dealing, SplitBatches
from stratagem_proto.errors import InvalidArgumentError, NotFoundError, UnimplementedError

_MISSING = object()

# What tells that something reads one of several parts: their number, and which one.
_PARTS = (("num_replicas", "rank"), ("num_processes", "process_index"), ("world_size", "rank"))

# Where loaders, samplers and datasets of all libraries have what they read from.
_WITHIN = ("sampler", "batch_sampler", "dataset", "base_dataloader", "_distributed")


def require_undivided(dataset: Any) -> None:
    """Check that a loader reads all of its data, and not the part of one process among several.

    Raises:
        InvalidArgumentError: It has torch's `DistributedSampler` or the like.
    """
    looked, remaining = set[int](), [dataset]
    while remaining:
        one = remaining.pop()
        if one is None or id(one) in looked:
            continue
        looked.add(id(one))
        for number, which in _PARTS:
            parts, part = getattr(one, number, None), getattr(one, which, None)
            if isinstance(parts, int) and isinstance(part, int) and parts > 1:
                raise InvalidArgumentError(
                    f"{type(one).__name__} reads part {part} of {parts} of the data, and the "
                    "strategy would divide that once more, so that most rows were never read; "
                    "leave it out, for the strategy divides the data itself: DataLoader(dataset, "
                    "batch_size=<of all workers together>, shuffle=True). To keep it, make the "
                    "loader in the function of distribute_datasets_from_function"
                )
        remaining += [getattr(one, name, None) for name in _WITHIN]


def _drawing(dataset: Any) -> list[Any]:
    """Return the loader and its samplers, as far as `dataset` has them."""
    found = [dataset.original if isinstance(dataset, NotedLoader) else dataset]
    for one in found:
        for name in ("batch_sampler", "sampler"):
            within = getattr(one, name, None)
            if within is not None and all(within is not each for each in found):
                found.append(within)
    return found


class ShuffleState:
    """The generators by which loaders shuffle, and their states at the beginning.

    Args:
        datasets: The loaders; others have none.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        owners = [owner for dataset in datasets for owner in _drawing(dataset)]
        own = [getattr(owner, "generator", None) for owner in owners]
        self._generators = [each for each in own if isinstance(each, torch.Generator)]
        self._states: list[torch.Tensor] = []

    def note(self) -> None:
        """Take note of how the generators stand."""
        self._states = [each.get_state() for each in self._generators]

    def repeat(self) -> None:
        """Let the generators stand as they were noted, if they were."""
        for generator, state in zip(self._generators, self._states, strict=False):
            generator.set_state(state)


@contextmanager
def undisturbed(datasets: Sequence[Any]) -> Iterator[None]:
    """Restore the generators of this process, and those of loaders, after the body."""
    shuffle, python, numpy = ShuffleState(datasets), random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        shuffle.note()
        try:
            yield
        finally:
            shuffle.repeat()
            random.setstate(python)
            np.random.set_state(numpy)


def shuffle_alike(dataset: Any, seed: Callable[[], int] | None) -> None:
    """Give samplers that draw from torch's generator one of their own, by `seed`.

    The generators of several processes may differ, and then each would read other rows at the same
    place of the same batch.

    Raises:
        InvalidArgumentError: There is such a sampler, but no seed.
    """
    for sampler in _drawing(dataset)[1:]:
        if getattr(sampler, "generator", _MISSING) is not None:
            continue
        if seed is None:
            raise InvalidArgumentError(
                f"The loader shuffles by {type(sampler).__name__} without a generator, "
                "so each worker would read another order; give it one of the same seed "
                "on every worker: DataLoader(..., "
                "generator=torch.Generator().manual_seed(seed))"
            )
        sampler.generator = torch.Generator().manual_seed(seed())


class Share(NamedTuple):
    """What one worker reads.

    Attributes:
        dataset: All of it, some of its files, or a loader of some of its rows.
        dealing: What of its batches is for which replica of this worker.
        order: What all workers have to read alike; None if nothing, or if they cannot compare.
    """

    dataset: Any
    dealing: Dealing
    order: ReadOrder | None = None


@dataclass(frozen=True)
class InputWorker:
    """A process as a reader of data.

    Attributes:
        context: Its place among all workers; dataset functions are given it.
        devices: Where the elements of each of its replicas go; None leaves them where they are.
        seed: Returns the same number to all workers, by which loaders shuffle that were given no
            generator. None if the workers can agree on none.
        number: The number of the dataset that is to be read, the same on all workers, which compare
            what they read of it. None if they cannot.

    Raises:
        InvalidArgumentError: The replicas in sync are not shared evenly between the workers. Spec:
            INP-21.
    """

    context: InputContext
    devices: tuple[torch.device | None, ...]
    seed: Callable[[], int] | None = None
    number: int | None = None

    def __post_init__(self) -> None:
        local, in_sync = len(self.devices), self.context.num_replicas_in_sync
        workers = self.context.num_input_pipelines
        if in_sync not in (local, local * workers):
            raise InvalidArgumentError(
                f"{in_sync} replicas in sync cannot be shared evenly between {workers} "
                f"workers of which this one has {local}; give every worker as many"
            )

    @property
    def _alone(self) -> bool:
        """Whether nobody but this worker's own replicas is in sync with them."""
        return self.context.num_replicas_in_sync == len(self.devices)

    def share_of(self, dataset: Any, policy: AutoShardPolicy | int) -> Share:
        """Return the part of `dataset` that this worker reads.

        Each element is cut into one chunk for each replica in sync, whatever the policy. Under
        `DATA` chunk j is for worker j mod workers; all workers have to read the same elements, or
        the indices of what is in them where that will do. Otherwise all chunks are for this worker,
        which then takes several steps for an element.

        Args:
            dataset: The whole.
            policy: How to share; a single worker reads everything.

        Raises:
            InvalidArgumentError: `policy` is none, there are fewer files than workers, or a loader
                shuffles differently on each worker, or reads only a part of its data already.
            NotFoundError: Files are to be shared, but the dataset names none.
            UnimplementedError: The dataset cannot be shared so.

        Spec: INP-11, INP-15 to INP-19.
        """
        chunks, local = self.context.num_replicas_in_sync, len(self.devices)
        turns = [range(start, start + local) for start in range(0, chunks, local)]
        effective, order = self._effective(dataset, policy), None
        if policy != AutoShardPolicy.OFF:
            require_undivided(dataset)
        if effective is AutoShardPolicy.DATA:
            return self._some_chunks(dataset)
        if effective is AutoShardPolicy.FILE:
            dataset, order = self._some_files(dataset)
        return Share(dataset, SplitBatches(chunks, tuple(turns)), order)

    def _some_chunks(self, dataset: Any) -> Share:
        shuffle_alike(dataset, self.seed)
        whole = self.context
        chunks = whole.num_replicas_in_sync
        own = range(whole.input_pipeline_id, chunks, whole.num_input_pipelines)
        order = None if self.number is None else ReadOrder(self.number)
        # Subclasses may read in ways of their own.
        if type(dataset) is not DataLoader:
            return Share(dataset, SplitBatches(chunks, (own,), ContentsDigest().beside), order)
        if can_read_by_index(dataset):
            return Share(NotedLoader(dataset, chunks, own), CutOwnRows(len(own)), order)
        return Share(NotedLoader(dataset), SplitBatches(chunks, (own,), _as_noted), order)

    def _effective(self, dataset: Any, policy: AutoShardPolicy | int) -> AutoShardPolicy:
        """Return DATA, FILE, or OFF, by which this worker reads everything."""
        if policy not in tuple(AutoShardPolicy):
            raise InvalidArgumentError(
                f"auto_shard_policy must be one of AutoShardPolicy, not {policy!r}"
            )
        if self.context.num_input_pipelines == 1:
            return AutoShardPolicy.OFF
        if policy == AutoShardPolicy.AUTO:
            by_file = _has_files(dataset)
            policy = AutoShardPolicy.FILE if by_file else AutoShardPolicy.DATA
        self._check_shareable(policy)
        return AutoShardPolicy(policy)

    def _check_shareable(self, policy: AutoShardPolicy | int) -> None:
        advice = (
            "use distribute_datasets_from_function and read the part of worker "
            "input_pipeline_id, or let each worker read everything by "
            "AutoShardPolicy.OFF"
        )
        if policy == AutoShardPolicy.HINT:
            raise UnimplementedError(
                f"A dataset has no place for the hint of AutoShardPolicy.HINT; {advice}"
            )
        if policy == AutoShardPolicy.DATA and self._alone:
            raise UnimplementedError(
                "Batches cannot be shared between "
                f"{self.context.num_input_pipelines} workers that step alone; {advice}"
            )

    def _some_files(self, dataset: Any) -> tuple[Any, ReadOrder | None]:
        if not _has_files(dataset):
            raise NotFoundError(
                f"Found an unshardable source dataset: {dataset!r} has not both `files`"
                " and `with_files(files)`; add them, or use AutoShardPolicy.DATA"
            )
        files, workers = list(dataset.files), self.context.num_input_pipelines
        if len(files) < workers:
            raise InvalidArgumentError(
                f"There are not enough files for {workers} workers: {len(files)}; "
                "write more files, or use AutoShardPolicy.DATA"
            )
        order = None if self.number is None else ReadOrder(self.number, files)
        return dataset.with_files(files[self.context.input_pipeline_id :: workers]), order


def _as_noted(element: Any) -> tuple[int, Any]:
    digest, _, batch = element
    return int(digest), batch


def _has_files(dataset: Any) -> bool:
    return hasattr(dataset, "files") and hasattr(dataset, "with_files")


_draw_lock = threading.Lock()

PassOrder = Sequence[Any]
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
        or (dataset is source and not (is_dataset(dataset) and is_map_style(dataset)))
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

    def order(self, seed: int, number: int) -> PassOrder:
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
        with _draw_lock, undisturbed(()):
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


def _seeded(sampler: Any, seed: int) -> Any:
    """Return a copy of a sampler that draws by a seed, and so does what is in it."""
    seeded = copy.copy(sampler)
    if hasattr(seeded, "generator"):
        seeded.generator = torch.Generator().manual_seed(seed)
    if getattr(seeded, "sampler", None) is not None:
        seeded.sampler = _seeded(seeded.sampler, seed)
    return seeded
