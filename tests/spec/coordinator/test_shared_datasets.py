"""Datasets of which workers share the batches, each to one function."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
)

import stratagem
from stratagem import IndexedSlices, Variable
from stratagem._coordinator.shared_dataset import SharedIterator
from stratagem.coordinator import ClusterCoordinator
from tests.client.coordinator.coordination import coordinating
from tests.client.coordinator.here import Gate, Journal
from tests.waiting import eventually

pytestmark = pytest.mark.spec("COO-12")

ROWS = 10
NUMBERS = TensorDataset(torch.arange(ROWS))


def one_pass(coordinator: ClusterCoordinator, dataset: Any) -> list[Any]:
    """What functions read in a pass, in the order in which they were scheduled."""
    iterator = iter(dataset)
    values = [coordinator.schedule(next, args=(iterator,)) for _ in range(len(dataset))]
    coordinator.join()
    return [value.get() for value in values]


def rows(batches: list[Any]) -> list[int]:
    return [int(row) for (batch,) in batches for row in batch]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_functions_share_the_batches_of_a_loader(
    coordinator: ClusterCoordinator, shuffle: bool, drop_last: bool
) -> None:
    loader = DataLoader(NUMBERS, batch_size=3, shuffle=shuffle, drop_last=drop_last)
    dataset = coordinator.create_per_worker_dataset(loader, exactly_once=True)
    batches = one_pass(coordinator, dataset)
    read = rows(batches)
    assert len(dataset) == len(loader) == len(batches)
    assert len(read) == len(set(read)) == (9 if drop_last else ROWS)
    assert shuffle or sorted(read) == list(range(len(read)))


class Shuffled(Sampler[int]):
    """Draws from a generator of Python, of which each process has its own."""

    def __init__(self, seeded: bool) -> None:
        self._seeded = seeded

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        rows = list(range(ROWS))
        (random if self._seeded else random.SystemRandom()).shuffle(rows)
        return iter(rows)


def test_samplers_shuffle_alike_on_all_workers_or_are_refused(
    coordinator: ClusterCoordinator,
) -> None:
    for seeded in (True, False):
        loader = DataLoader(NUMBERS, batch_size=1, sampler=Shuffled(seeded))
        dataset = coordinator.create_per_worker_dataset(loader, exactly_once=True)
        if not seeded:
            with pytest.raises(stratagem.FailedPreconditionError, match="in different orders"):
                one_pass(coordinator, dataset)
            return
        for _ in range(2):
            read = rows(one_pass(coordinator, dataset))
            assert sorted(read) == list(range(ROWS)) != read


def test_a_loader_that_is_divided_already_is_refused(coordinator: ClusterCoordinator) -> None:
    loader = DataLoader(NUMBERS, sampler=DistributedSampler(NUMBERS, 2, 0))
    for exactly_once in (False, True):
        with pytest.raises(stratagem.InvalidArgumentError, match="reads part 0 of 2"):
            coordinator.create_per_worker_dataset(loader, exactly_once=exactly_once)
    with pytest.raises(stratagem.InvalidArgumentError, match="reads part 0 of 2"):
        coordinator.create_per_worker_dataset(lambda: loader, exactly_once=True)


class Counted(Dataset[int]):
    """Notes what is read of it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getitem__(self, index: int) -> int:
        self._journal.write(index)
        return index

    def __len__(self) -> int:
        return ROWS


def test_workers_read_the_rows_of_their_batches_alone(
    coordinator: ClusterCoordinator,
) -> None:
    journal = Journal()
    loader = DataLoader(Counted(journal), batch_size=2, shuffle=True)
    dataset = coordinator.create_per_worker_dataset(loader, exactly_once=True)
    one_pass(coordinator, dataset)
    assert sorted(journal.entries) == list(range(ROWS))


def total(batch: list[int]) -> int:
    return sum(batch)


def loader_of_sums() -> DataLoader[Any]:
    return DataLoader(range(ROWS), batch_size=5, collate_fn=total)  # type: ignore[arg-type]


def test_a_function_may_make_the_loader(coordinator: ClusterCoordinator) -> None:
    dataset = coordinator.create_per_worker_dataset(loader_of_sums, exactly_once=True)
    assert sorted(one_pass(coordinator, dataset)) == [10, 35]


@pytest.mark.parametrize(
    "source",
    [
        [torch.tensor(0), torch.tensor(1)],
        TensorDataset(torch.arange(2)),
        DataLoader(range(2), batch_size=None),  # type: ignore[arg-type]
    ],
)
def test_elements_that_are_no_batches_are_shared_one_by_one(
    coordinator: ClusterCoordinator, source: Any
) -> None:
    dataset = coordinator.create_per_worker_dataset(source, exactly_once=True)
    elements = one_pass(coordinator, dataset)
    assert sorted(int(torch.as_tensor(element)) for element in elements) == [0, 1]


def order(
    coordinator: ClusterCoordinator, loader: DataLoader[Any], passes: int = 1
) -> list[list[int]]:
    """The order in which one function reads each pass."""
    dataset = coordinator.create_per_worker_dataset(loader, exactly_once=True)
    values = [coordinator.schedule(list, args=(iter(dataset),)) for _ in range(passes)]
    return [rows(value.get()) for value in values]


def test_each_pass_is_shuffled_anew(coordinator: ClusterCoordinator) -> None:
    first, second = order(coordinator, DataLoader(NUMBERS, shuffle=True), passes=2)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(ROWS))


def test_seeds_settle_how_data_are_shuffled(coordinator: ClusterCoordinator) -> None:
    def shuffled() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(NUMBERS, shuffle=True, generator=generator)

    assert order(coordinator, shuffled()) == order(coordinator, shuffled())
    found = []
    for seed in 1, 1, 2:
        torch.manual_seed(seed)
        found += order(coordinator, DataLoader(NUMBERS, shuffle=True))
    assert found[0] == found[1] != found[2]


class Drawn(Sampler[int]):
    """Draws from the generator that all of a process share."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(ROWS).tolist())

    def __len__(self) -> int:
        return ROWS


def test_samplers_without_a_generator_are_settled_too(
    coordinator: ClusterCoordinator,
) -> None:
    loader = DataLoader(NUMBERS, sampler=Drawn(), batch_size=4)
    dataset = coordinator.create_per_worker_dataset(loader, exactly_once=True)
    assert sorted(rows(one_pass(coordinator, dataset))) == list(range(ROWS))


class Endless(IterableDataset[int]):
    """Has no numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter([])


@pytest.mark.parametrize(
    "source", [Endless(), DataLoader(Endless()), lambda: iter([1]), lambda: {1, 2}]
)
def test_data_without_numbers_are_refused_at_once(
    coordinator: ClusterCoordinator, source: Any
) -> None:
    with pytest.raises(ValueError, match="cannot be read exactly once"):
        coordinator.create_per_worker_dataset(source, exactly_once=True)


def test_names_are_for_shared_datasets_and_for_one_each(
    coordinator: ClusterCoordinator,
) -> None:
    create = coordinator.create_per_worker_dataset
    with pytest.raises(ValueError, match="exactly_once=True, or no name"):
        create([1], name="one")
    create([1], exactly_once=True, name="one")
    with pytest.raises(ValueError, match="has made a dataset 'one' before"):
        create([1], exactly_once=True, name="one")
    assert len(create([1], exactly_once=True)) == 1


@pytest.mark.spec("COO-15")
def test_a_function_too_many_finds_the_end_of_the_pass(
    coordinator: ClusterCoordinator,
) -> None:
    dataset = coordinator.create_per_worker_dataset([1], exactly_once=True)
    iterator = iter(dataset)
    assert coordinator.schedule(next, args=(iterator,)).fetch() == 1
    coordinator.schedule(next, args=(iterator,))
    with pytest.raises(stratagem.OutOfRangeError, match="End of sequence"):
        coordinator.join()
    assert one_pass(coordinator, dataset) == [1]


def test_a_pass_has_a_number_and_something_left(
    coordinator: ClusterCoordinator,
) -> None:
    batches = [torch.ones(4), torch.ones(4)]
    dataset = coordinator.create_per_worker_dataset(batches, exactly_once=True)
    passes = [iter(dataset) for _ in range(2)]
    assert [one.pass_number for one in passes] == [0, 1]
    assert [one.remaining for one in passes] == [2, 2]
    assert passes[0].element_spec.shape == (None,)


@pytest.mark.spec("COO-8", "FLT-3")
def test_a_function_that_runs_again_gets_the_batch_that_it_got_before() -> None:
    gate = Gate()

    def count(batches: Any, counts: Variable) -> None:
        (rows,) = next(batches)
        gate.pass_through()
        counts.scatter_add(IndexedSlices(torch.ones_like(rows), rows))

    loader = DataLoader(NUMBERS, batch_size=2, shuffle=True)
    with coordinating(num_workers=2, num_servers=2) as coordination:
        coordinator = coordination.coordinator
        with coordination.strategy.scope():
            counts = Variable(torch.zeros(ROWS, dtype=torch.int64), trainable=False)
        dataset = coordinator.create_per_worker_dataset(loader, exactly_once=True)
        batches = iter(dataset)
        for _ in range(len(dataset)):
            coordinator.schedule(count, args=(batches, counts))
        gate.wait_for(2)
        coordination.stop(0)
        gate.open()
        coordinator.join()
        assert counts.numpy().tolist() == [1] * ROWS


def test_another_program_takes_over_a_pass_with_its_unfinished_functions() -> None:
    gate = Gate()

    def held(batches: Any) -> Any:
        batch = next(batches)
        gate.pass_through()
        return batch

    def shared(coordinator: ClusterCoordinator) -> SharedIterator:
        loader = DataLoader(NUMBERS, batch_size=2, shuffle=True)
        return iter(coordinator.create_per_worker_dataset(loader, True, "numbers"))

    with coordinating(num_workers=2) as coordination:
        lost = coordination.coordinator
        batches = shared(lost)
        ended = lost.schedule(next, args=(batches,)).get()
        lost.schedule(held, args=(batches,))
        gate.wait_for(1)
        closures = coordination.servers[0]._state.closures
        eventually(lambda: [len(one.unended) for _, one in closures.coordinators()] == [1])
        coordination.strategy.close()
        with coordination.new_strategy() as strategy:
            coordinator = ClusterCoordinator(strategy)
            rest = shared(coordinator)
            assert (rest.pass_number, rest.remaining) == (0, 4)
            values = [coordinator.schedule(next, args=(rest,)) for _ in range(4)]
            read = [ended, *(value.get() for value in values)]
            assert sorted(rows(read)) == list(range(ROWS))
