"""Datasets of which each worker has its own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import stratagem
from stratagem import ClosureInputError
from stratagem.coordinator import (
    ClusterCoordinator,
    PerWorkerValues,
    experimental_get_current_worker_index,
)
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.client.coordinator.here import Journal
from tests.spec.coordinator.each_worker import on_each_worker
from tests.waiting import eventually


def total(iterator: Any) -> float:
    return sum(float(element) for element in iterator)


def numbers() -> list[float]:
    return [1.0, 2.0, 3.0]


LOADER = DataLoader(TensorDataset(torch.arange(3.0)), batch_size=None)


@pytest.mark.spec("COO-12", "COO-13")
@pytest.mark.parametrize("source", [numbers, numbers(), lambda: iter(numbers())])
def test_functions_and_datasets_become_datasets_of_workers(
    coordinator: ClusterCoordinator, source: Any
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(source))
    assert isinstance(iterator, PerWorkerValues)
    assert coordinator.schedule(total, args=(iterator,)).fetch() == 6


@pytest.mark.spec("COO-12")
def test_a_dataset_is_made_in_no_scope(coordinator: ClusterCoordinator) -> None:
    def scopes() -> list[bool]:
        return [stratagem.has_strategy(), stratagem.in_cross_replica_context()]

    iterator = iter(coordinator.create_per_worker_dataset(scopes))
    assert coordinator.schedule(list, args=(iterator,)).fetch() == [False, False]


@pytest.mark.spec("COO-12")
def test_loaders_become_datasets_of_workers(coordinator: ClusterCoordinator) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(lambda: LOADER))
    (element,) = coordinator.schedule(next, args=(iterator,)).fetch()
    assert element == 0


@pytest.mark.spec("COO-12")
def test_a_dataset_function_creates_no_variables(
    coordinator: ClusterCoordinator,
) -> None:
    def creating() -> list[Any]:
        return [stratagem.Variable(1.0, name="counter")]

    iterator = iter(coordinator.create_per_worker_dataset(creating))
    coordinator.schedule(next, args=(iterator,))
    message = "Creating variables in `dataset_fn` is not allowed"
    with pytest.raises(ClosureInputError, match=message) as caught:
        coordinator.join()
    assert isinstance(caught.value.original_exception, ValueError)


@pytest.mark.spec("COO-12")
def test_distributed_datasets_are_made_by_the_worker(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    strategy = coordination.strategy

    def batches() -> Any:
        return strategy.distribute_datasets_from_function(lambda _: [torch.ones(2)])

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    assert coordinator.schedule(next, args=(iterator,)).fetch().tolist() == [1, 1]


@pytest.mark.spec("COO-13")
def test_a_dataset_tells_what_its_elements_look_like(
    coordinator: ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset(lambda: [torch.ones(4, 2)])
    assert dataset.element_spec.shape == (None, 2)
    assert iter(dataset).element_spec.dtype is torch.float32


class Stream:
    """Gives each of its numbers once; a copy goes on where it is."""

    def __init__(self) -> None:
        self.left = numbers()

    def __iter__(self) -> Iterator[float]:
        while self.left:
            yield self.left.pop(0)


@pytest.mark.spec("COO-13")
@pytest.mark.parametrize("distributes", [False, True])
def test_workers_find_what_was_looked_at(
    coordinator: ClusterCoordinator, distributes: bool
) -> None:
    source: Any = Stream()
    if distributes:
        source = coordinator.strategy.experimental_distribute_dataset(source)
    dataset = coordinator.create_per_worker_dataset(source)
    assert dataset.element_spec.dtype is torch.float32
    assert coordinator.schedule(total, args=(iter(dataset),)).fetch() == 6.0


@pytest.mark.spec("COO-13")
def test_datasets_themselves_can_be_arguments(coordinator: ClusterCoordinator) -> None:
    built = coordinator.create_per_worker_dataset(numbers).build()
    assert coordinator.schedule(list, args=(built,)).fetch() == numbers()


NUMBERS: Any = range(20)


def by_loader(generator: torch.Generator) -> DataLoader[int]:
    return DataLoader(NUMBERS, batch_size=4, shuffle=True, generator=generator)


def by_batches(generator: torch.Generator) -> DataLoader[int]:
    sampler = RandomSampler(NUMBERS, generator=generator)
    return DataLoader(NUMBERS, batch_sampler=BatchSampler(sampler, 4, drop_last=False))


@pytest.mark.spec("COO-14")
@pytest.mark.parametrize("shuffling", [by_loader, by_batches])
def test_each_pass_over_a_loader_that_shuffles_by_a_generator_has_an_order_of_its_own(
    shuffling: Callable[[torch.Generator], DataLoader[int]],
) -> None:
    def orders() -> list[Any]:
        loader = shuffling(torch.Generator().manual_seed(7))
        with coordinating(num_workers=1) as coordination:
            coordinator = coordination.coordinator
            dataset = coordinator.create_per_worker_dataset(loader)
            return [coordinator.schedule(rows, args=(iter(dataset),)).fetch() for _ in range(3)]

    first, second, third = found = orders()
    assert sorted(first) == sorted(second) == sorted(third) == [*NUMBERS]
    assert first != second != third != first
    assert orders() == found


def rows(iterator: Any) -> list[int]:
    return [int(number) for batch in iterator for number in batch]


@pytest.mark.spec("COO-14")
def test_each_worker_reads_all_of_the_data_in_steps(
    coordinator: ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset(numbers)
    first, second = iter(dataset), iter(dataset)
    assert on_each_worker(coordinator, next, first) == [1, 1]
    assert on_each_worker(coordinator, next, first) == [2, 2]
    assert on_each_worker(coordinator, next, second) == [1, 1]


@pytest.mark.spec("COO-14", "ERR-10")
def test_an_iterator_begins_anew_on_a_worker_that_comes_back() -> None:
    with coordinating(num_workers=1) as coordination:
        coordinator = coordination.coordinator
        iterator = iter(coordinator.create_per_worker_dataset(numbers))
        assert coordinator.schedule(next, args=(iterator,)).fetch() == 1
        assert coordinator.schedule(next, args=(iterator,)).fetch() == 2
        coordination.stop(0)
        coordination.start(0)
        assert coordinator.schedule(next, args=(iterator,)).fetch() == 1


@pytest.mark.spec("COO-17")
def test_a_dataset_function_knows_the_index_of_its_worker(
    coordinator: ClusterCoordinator,
) -> None:
    def every_second() -> list[int]:
        return list(range(experimental_get_current_worker_index(), 6, 2))

    iterator = iter(coordinator.create_per_worker_dataset(every_second))
    assert sorted(on_each_worker(coordinator, total, iterator)) == [6, 9]


def test_workers_forget_iterators_that_are_dropped(
    coordinator: ClusterCoordinator,
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(numbers))
    coordinator.schedule(next, args=(iterator,)).fetch()
    workers = coordinator._dispatch._roster.there.values()
    coordinator.join()
    handle = iterator._shipped_handle()
    assert any(handle in worker._remote_objects for worker in workers)
    del iterator
    gc.collect()
    coordinator.join()
    eventually(lambda: not any(handle in worker._remote_objects for worker in workers))


def test_a_dataset_is_made_when_it_is_first_needed(
    coordinator: ClusterCoordinator,
) -> None:
    journal = Journal()

    def noted() -> list[int]:
        journal.write("made")
        return [1]

    iterator = iter(coordinator.create_per_worker_dataset(noted))
    coordinator.schedule(lambda: 1).fetch()
    assert journal.entries == []
    coordinator.schedule(next, args=(iterator,)).fetch()
    assert journal.entries == ["made"]
