"""Which share of the data a worker reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from stratagem._core.options import InputContext
from stratagem._input.options import AutoShardPolicy
from stratagem._input.own_rows import can_read_by_index, reading_own_rows
from stratagem._input.rounds import CutOwnRows, Dealing, SplitBatches
from stratagem_proto.errors import InvalidArgumentError, NotFoundError, UnimplementedError

_MISSING = object()


def _drawing(dataset: Any) -> list[Any]:
    """Return the loader and its samplers, as far as `dataset` has them."""
    batch_sampler = getattr(dataset, "batch_sampler", None)
    samplers = (getattr(owner, "sampler", None) for owner in (dataset, batch_sampler))
    return [dataset, *samplers]


class Order:
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
    """Restore torch's CPU generator, and those of loaders, after the body."""
    order = Order(datasets)
    with torch.random.fork_rng(devices=[]):
        order.note()
        try:
            yield
        finally:
            order.repeat()


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
    """

    dataset: Any
    dealing: Dealing


@dataclass(frozen=True)
class InputWorker:
    """A process as a reader of data.

    Attributes:
        context: Its place among all workers; dataset functions are given it.
        devices: Where the elements of each of its replicas go; None leaves them where they are.
        seed: Returns the same number to all workers, by which loaders shuffle that were given no
            generator. None if the workers can agree on none.

    Raises:
        InvalidArgumentError: The replicas in sync are not shared evenly between the workers. Spec:
            INP-21.
    """

    context: InputContext
    devices: tuple[torch.device | None, ...]
    seed: Callable[[], int] | None = None

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
                shuffles differently on each worker.
            NotFoundError: Files are to be shared, but the dataset names none.
            UnimplementedError: The dataset cannot be shared so.

        Spec: INP-11, INP-15 to INP-19.
        """
        chunks, local = self.context.num_replicas_in_sync, len(self.devices)
        turns = [range(start, start + local) for start in range(0, chunks, local)]
        effective = self._effective(dataset, policy)
        if effective is AutoShardPolicy.DATA:
            return self._some_chunks(dataset)
        if effective is AutoShardPolicy.FILE:
            dataset = self._some_files(dataset)
        return Share(dataset, SplitBatches(chunks, tuple(turns)))

    def _some_chunks(self, dataset: Any) -> Share:
        shuffle_alike(dataset, self.seed)
        whole = self.context
        chunks = whole.num_replicas_in_sync
        own = range(whole.input_pipeline_id, chunks, whole.num_input_pipelines)
        if can_read_by_index(dataset):
            return Share(reading_own_rows(dataset, chunks, own), CutOwnRows(len(own)))
        return Share(dataset, SplitBatches(chunks, (own,)))

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

    def _some_files(self, dataset: Any) -> Any:
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
        return dataset.with_files(files[self.context.input_pipeline_id :: workers])


def _has_files(dataset: Any) -> bool:
    return hasattr(dataset, "files") and hasattr(dataset, "with_files")
