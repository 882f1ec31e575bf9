"""What each of several workers reads of one dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stratagem import (
    AutoShardPolicy,
    InputContext,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    Strategy,
    StrategyExtended,
    UnimplementedError,
)
from stratagem._input.iterator import DistributedIterator
from stratagem._input.pipeline import (
    InputPipeline,
    function_pipeline,
    splitting_pipeline,
)
from stratagem._input.rounds import Position
from stratagem._input.sharding import InputWorker
from stratagem_proto.input_order import BatchRead
from tests.client.batches import Numbers, batches, steps
from tests.client.two_replicas import TwoReplicas

DATA, OFF, FILE = AutoShardPolicy.DATA, AutoShardPolicy.OFF, AutoShardPolicy.FILE


def workers(count: int, local: int, seed: Callable[[], int] | None = None) -> list[InputWorker]:
    """Return all workers of a cluster that steps in sync."""
    contexts = [InputContext(count, number, count * local) for number in range(count)]
    return [InputWorker(context, (None,) * local, seed) for context in contexts]


def rows(pipeline: InputPipeline, position: Position | None = None) -> list[Any]:
    """Return what each replica of a worker gets in each step."""
    rounds = pipeline.open() if position is None else pipeline.open(position)
    return [[part.tolist() for part in round_.parts] for round_ in rounds]


def shared(dataset: Any, readers: list[InputWorker], policy: AutoShardPolicy) -> list[Any]:
    """Return the steps of each worker."""
    return [rows(splitting_pipeline(dataset, reader, policy=policy)) for reader in readers]


@pytest.mark.spec("INP-15")
@pytest.mark.parametrize("policy", [AutoShardPolicy.AUTO, DATA])
def test_chunks_of_a_batch_go_to_the_workers_in_turn(policy: AutoShardPolicy) -> None:
    assert shared(batches(8, 8), workers(2, 2), policy) == [
        [[[0, 1], [4, 5]]],
        [[[2, 3], [6, 7]]],
    ]
    assert shared(batches(10, 4), workers(2, 2), policy) == [
        [[[0], [2]], [[4], [6]], [[8], []]],
        [[[1], [3]], [[5], [7]], [[9], []]],
    ]


@pytest.mark.spec("INP-15", "INP-27")
def test_a_worker_without_rows_takes_part_in_the_last_step() -> None:
    assert shared(batches(9, 2), workers(2, 1), DATA) == [
        [[[0]], [[2]], [[4]], [[6]], [[8]]],
        [[[1]], [[3]], [[5]], [[7]], [[]]],
    ]


@pytest.mark.spec("INP-15")
def test_a_shared_loader_has_one_step_for_each_batch() -> None:
    for reader in workers(2, 1):
        assert splitting_pipeline(batches(9, 2), reader).steps == 5


class Noted(Numbers):
    """Numbers that note which of them were read."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.read: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return super().__getitem__(index)


@pytest.mark.spec("INP-15")
@pytest.mark.parametrize("local", [1, 2])
def test_a_worker_reads_no_rows_of_others(local: int) -> None:
    """Unless it has none itself, and has to know what they look like."""
    for reader in workers(2, local):
        noted = Noted(21)
        steps = rows(splitting_pipeline(DataLoader(noted, batch_size=5), reader))
        own = [number for step in steps for part in step for number in part]
        assert noted.read == own or (noted.read[:-1] == own and noted.read[-1] == 20)
        assert 8 <= len(own) <= 13


@pytest.mark.spec("INP-11", "INP-15")
@pytest.mark.parametrize("size", [1, 3, 4, 5, 9])
def test_reading_by_index_gives_what_cutting_whole_batches_gives(size: int) -> None:
    for reader in workers(3, 2):
        for count in (1, 17, 18):
            whole = [torch.arange(count)[at : at + size] for at in range(0, count, size)]
            by_index = rows(splitting_pipeline(batches(count, size), reader))
            assert by_index == rows(splitting_pipeline(whole, reader))


@pytest.mark.spec("INP-15")
def test_processes_of_a_loader_read_the_workers_rows_too() -> None:
    loader = batches(8, 4, num_workers=1)
    assert shared(loader, workers(2, 1), DATA) == [
        [[[0, 1]], [[4, 5]]],
        [[[2, 3]], [[6, 7]]],
    ]


@pytest.mark.spec("INP-15")
def test_a_batch_that_is_collated_in_its_own_way_is_collated_whole() -> None:
    loader = batches(4, 4, collate_fn=lambda samples: torch.stack(samples).flip(0))
    assert shared(loader, workers(2, 1), DATA) == [[[[3, 2]]], [[[1, 0]]]]


@pytest.mark.spec("INP-15")
def test_loaders_that_shuffle_do_so_alike_on_all_workers() -> None:
    readers = workers(2, 1, seed=lambda: 7)
    loaders = [batches(64, 8, shuffle=True) for _ in readers]
    for _ in range(2):
        seen: list[int] = []
        for draws, (reader, loader) in enumerate(zip(readers, loaders, strict=True)):
            torch.manual_seed(draws)
            for (part,) in rows(splitting_pipeline(loader, reader)):
                seen += part
        assert sorted(seen) == list(range(64))
        assert seen != sorted(seen)


@pytest.mark.spec("INP-15")
def test_workers_that_would_shuffle_differently_are_told() -> None:
    (reader, _) = workers(2, 1)
    with pytest.raises(InvalidArgumentError, match="another order; give it one"):
        splitting_pipeline(batches(4, 2, shuffle=True), reader)
    generator = torch.Generator().manual_seed(1)
    loader = batches(4, 2, shuffle=True, generator=generator)
    assert len(rows(splitting_pipeline(loader, reader))) == 2


@pytest.mark.spec("INP-16")
def test_under_off_every_worker_reads_everything() -> None:
    """A step takes one chunk for each replica in sync, so a batch lasts longer."""
    everything = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert shared(batches(8, 8), workers(2, 2), OFF) == [everything, everything]
    numbers = [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8]]]
    assert shared(batches(9, 4), workers(2, 1), OFF) == [numbers, numbers]


@pytest.mark.spec("INP-16")
def test_no_step_of_a_worker_that_reads_everything_is_empty() -> None:
    (first, _) = shared(batches(5, 1), workers(2, 1), OFF)
    assert first == [[[0]], [[1]], [[2]], [[3]], [[4]]]
    (first, _) = shared(batches(10, 4), workers(2, 2), OFF)
    assert first == [[[2 * k], [2 * k + 1]] for k in range(5)]


@pytest.mark.spec("INP-16")
def test_an_empty_batch_is_a_step_of_its_own() -> None:
    (first, _) = shared([torch.ones(0)], workers(2, 1), OFF)
    assert first == [[[]]]


@pytest.mark.spec("INP-16")
def test_the_number_of_steps_depends_on_the_batches() -> None:
    (reader, _) = workers(2, 1)
    assert splitting_pipeline(batches(9, 2), reader, policy=OFF).steps is None


@pytest.mark.spec("INP-16")
def test_a_position_may_lie_inside_of_a_batch() -> None:
    (reader, _) = workers(2, 1)
    pipeline = splitting_pipeline(batches(8, 4), reader, policy=OFF)
    everything = rows(pipeline)
    for taken, round_ in enumerate(pipeline.open(), start=1):
        assert rows(pipeline, round_.position) == everything[taken:]
    iterator = DistributedIterator(TwoReplicas(), pipeline)
    next(iterator)
    other = DistributedIterator(TwoReplicas(), pipeline)
    other.load_state_dict(iterator.state_dict())
    assert steps(other) == steps(iterator) == [[[2, 3]], [[4, 5]], [[6, 7]]]


@pytest.mark.spec("INP-16")
def test_workers_that_step_alone_read_whole_batches() -> None:
    alone = InputWorker(InputContext(2, 0, 2), (None, None))
    assert shared(batches(5, 4), [alone], OFF) == [[[[0, 1], [2, 3]], [[4], []]]]
    with pytest.raises(UnimplementedError, match="2 workers that step alone"):
        alone.share_of(batches(5, 4), DATA)


class Files:
    """A dataset of batches, one for each file."""

    def __init__(self, files: list[int]) -> None:
        self.files = files

    def with_files(self, files: list[int]) -> Files:
        return Files(files)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for file in self.files:
            yield torch.arange(4) + 10 * file


@pytest.mark.spec("INP-17")
def test_files_are_dealt_to_the_workers() -> None:
    assert shared(Files([0, 1, 2]), workers(2, 1), FILE) == [
        [[[0, 1]], [[2, 3]], [[20, 21]], [[22, 23]]],
        [[[10, 11]], [[12, 13]]],
    ]


@pytest.mark.spec("INP-17")
def test_what_has_no_files_is_not_shared_by_them() -> None:
    with pytest.raises(NotFoundError, match="unshardable source dataset"):
        shared([1], workers(2, 1), FILE)


@pytest.mark.spec("INP-17", "INP-18")
@pytest.mark.parametrize("policy", [FILE, AutoShardPolicy.AUTO])
def test_every_worker_needs_a_file(policy: AutoShardPolicy) -> None:
    with pytest.raises(InvalidArgumentError, match="not enough files for 2 workers"):
        shared(Files([0]), workers(2, 1), policy)


@pytest.mark.spec("INP-18")
def test_files_are_shared_where_there_are_some() -> None:
    readers = workers(2, 1)
    by_file = shared(Files([0, 1]), readers, FILE)
    assert shared(Files([0, 1]), readers, AutoShardPolicy.AUTO) == by_file
    by_row = shared(batches(4, 4), readers, AutoShardPolicy.AUTO)
    assert by_row == [[[[0, 1]]], [[[2, 3]]]]


@pytest.mark.spec("INP-19")
def test_a_hint_has_no_place_in_a_dataset_of_several_workers() -> None:
    with pytest.raises(UnimplementedError, match=r"place for the hint"):
        shared([1], workers(2, 1), AutoShardPolicy.HINT)


@pytest.mark.spec("INP-21")
def test_every_worker_has_as_many_replicas() -> None:
    with pytest.raises(ValueError, match="3 replicas in sync cannot be shared evenly"):
        InputWorker(InputContext(2, 0, 3), (None,))


class PairedExtended(StrategyExtended):
    """One replica, whose other worker has as many steps as it is told."""

    def __init__(self, strategy: Strategy, others: int) -> None:
        super().__init__(strategy)
        self._others = iter([True] * others)

    def _input_left(self, here: bool, read: BatchRead | None) -> bool:
        return next(self._others, False) or here


class Paired(Strategy):
    def __init__(self, others: int) -> None:
        super().__init__(PairedExtended(self, others))


@pytest.mark.spec("INP-27")
def test_a_worker_steps_until_all_workers_have_ended() -> None:
    (reader, _) = workers(2, 1)
    pipeline = function_pipeline(lambda _: DataLoader(Numbers(3), 2), reader)
    iterator = DistributedIterator(Paired(4), pipeline)
    assert steps(iterator) == [[[0, 1]], [[2]], [[]], [[]]]
    with pytest.raises(OutOfRangeError):
        iterator.get_next()


@pytest.mark.spec("INP-27")
def test_a_worker_needs_data_to_know_what_empty_ones_look_like() -> None:
    (reader, _) = workers(2, 1)
    pipeline = function_pipeline(lambda _: [], reader)
    with pytest.raises(OutOfRangeError, match="nobody knows what empty ones look like"):
        next(DistributedIterator(Paired(1), pipeline))
