"""Going on with a dataset where an earlier iterator stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from stratagem import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    InputOptions,
    InputReplicationMode,
    InvalidArgumentError,
)
from tests.checkpoints import reloaded
from tests.client.batches import Streamed, batches, shares, steps
from tests.client.two_replicas import TwoReplicas


@pytest.fixture(params=[0, 2], ids=["read when asked", "read ahead"])
def options(request: pytest.FixtureRequest) -> InputOptions:
    return InputOptions(experimental_per_replica_buffer_size=request.param)


class Shuffled:
    """A loader that knows its own position and counts what it reads.

    Its order is drawn anew for each epoch, so counting cannot restore it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._order: list[int] | None = None
        self.reads = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._order is None:
            self._order = torch.randperm(self._count).tolist()
        while self._order:
            self.reads += 1
            yield torch.tensor([self._order.pop()])
        self._order = None

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order or []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._order = list(state_dict["order"])


class Counting(Iterator[torch.Tensor]):
    """An iterator that knows its own position."""

    def __init__(self) -> None:
        self._number = -1

    def __next__(self) -> torch.Tensor:
        self._number += 1
        return torch.tensor([self._number])

    def state_dict(self) -> int:
        return self._number

    def load_state_dict(self, state_dict: int) -> None:
        self._number = state_dict


class Recorded(Sequence[torch.Tensor]):
    """A map-style dataset that notes what is read."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        self.read.append(index)
        return torch.tensor([index, index])


class MapStyle(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def __len__(self) -> int:
        return len(self._recorded)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.as_tensor(self._recorded[index])


def iterated(dataset: Any, options: InputOptions | None = None) -> DistributedIterator:
    """Return an iterator for two replicas that share each element."""
    distributed = TwoReplicas().experimental_distribute_dataset(dataset, options)
    assert isinstance(distributed, DistributedDataset)
    return iter(distributed)


def dealt(dataset_fn: Any, options: InputOptions) -> DistributedIterator:
    strategy = TwoReplicas()
    distributed = strategy.distribute_datasets_from_function(dataset_fn, options)
    assert isinstance(distributed, DistributedDataset)
    return iter(distributed)


@pytest.mark.parametrize("kind", ["loader", "list", "stream", "function"])
def test_an_iterator_goes_on_after_the_last_input_taken(kind: str, options: InputOptions) -> None:
    """What was read ahead, but not taken, comes again."""
    elements = list(batches(8, 2))
    dataset: Any = {
        "loader": batches(8, 2),
        "list": elements,
        "stream": Streamed(elements),
        "function": lambda: iter(elements),
    }[kind]
    first = iterated(dataset, options)
    assert [shares(next(first)) for _ in range(2)] == [[[0], [1]], [[2], [3]]]
    second = iterated(dataset, options)
    second.load_state_dict(reloaded(first.state_dict()))
    assert steps(second) == steps(first) == [[[4], [5]], [[6], [7]]]


def test_positions_before_the_first_and_after_the_last_input(
    options: InputOptions,
) -> None:
    iterator = iterated(batches(2, 2), options)
    start = reloaded(iterator.state_dict())
    assert steps(iterator) == [[[0], [1]]]
    end = reloaded(iterator.state_dict())
    iterator.load_state_dict(start)
    assert iterator.state_dict() == start
    assert steps(iterator) == [[[0], [1]]]
    iterator.load_state_dict(end)
    assert iterator.state_dict() == end
    assert steps(iterator) == []


def test_what_was_taken_is_not_read_again() -> None:
    """A map-style dataset is entered at the right index."""
    recorded = Recorded(4)
    iterator = iterated(MapStyle(recorded))
    next(iterator), next(iterator)
    state = iterator.state_dict()
    recorded.read.clear()
    iterator.load_state_dict(state)
    assert steps(iterator) == [[[2], [2]], [[3], [3]]]
    assert recorded.read == [2, 3]


def shuffled() -> torch.utils.data.DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return batches(16, 2, shuffle=True, generator=generator)


def test_a_seeded_loader_goes_on_in_the_same_order(options: InputOptions) -> None:
    """No row is read twice or left out by a program that is started again."""
    first = iterated(shuffled(), options)
    taken = [shares(next(first)) for _ in range(3)]
    second = iterated(shuffled(), options)
    second.load_state_dict(reloaded(first.state_dict()))
    rest = steps(second)
    assert rest == steps(first)
    rows = [row for step in taken + rest for part in step for row in part]
    assert sorted(rows) == list(range(16))


def test_a_loader_seeded_by_torch_goes_on_in_the_same_order() -> None:
    def seeded() -> DistributedIterator:
        torch.manual_seed(3)
        return iterated(batches(16, 2, shuffle=True))

    first = seeded()
    next(first), next(first)
    state = reloaded(first.state_dict())
    rest = steps(first)
    second = seeded()
    second.load_state_dict(state)
    assert steps(second) == rest


def test_going_back_in_a_later_pass_finds_the_order_of_that_pass(
    options: InputOptions,
) -> None:
    loader = shuffled()
    first_pass = steps(iterated(loader, options))
    iterator = iterated(loader, options)
    next(iterator)
    state = reloaded(iterator.state_dict())
    rest = steps(iterator)
    iterator.load_state_dict(state)
    assert steps(iterator) == rest != first_pass[1:]


def test_an_iterator_that_went_elsewhere_first_finds_its_order_again(
    options: InputOptions,
) -> None:
    first = iterated(shuffled(), options)
    next(first)
    state = reloaded(first.state_dict())
    second = iterated(shuffled(), options)
    second.load_state_dict(state)
    rest = steps(second)
    second.load_state_dict(state)
    assert steps(second) == rest == steps(first)


def test_a_loader_that_knows_its_position_is_asked(options: InputOptions) -> None:
    torch.manual_seed(0)
    first = dealt(lambda context: Shuffled(20), options)
    taken = [shares(next(first)) for _ in range(4)]
    state = reloaded(first.state_dict())
    fresh = Shuffled(20)
    second = dealt(lambda context: fresh, options)
    second.load_state_dict(state)
    rest = steps(second)
    assert rest == steps(first)
    assert fresh.reads == 12
    numbers = [part for step in taken + rest for (part,) in step]
    assert sorted(numbers) == list(range(20))


def test_an_iterator_that_knows_its_position_is_asked() -> None:
    options = InputOptions(experimental_per_replica_buffer_size=0)

    def dataset_fn(context: InputContext) -> Any:
        return Counting

    first = dealt(dataset_fn, options)
    assert [shares(next(first)) for _ in range(2)] == [[[0], [1]], [[2], [3]]]
    second = dealt(dataset_fn, options)
    second.load_state_dict(reloaded(first.state_dict()))
    assert shares(next(second)) == [[4], [5]]
    assert shares(next(first)) == [[4], [5]]


def test_each_replica_has_a_position_in_its_own_dataset() -> None:
    mode = InputReplicationMode.PER_REPLICA
    options = InputOptions(experimental_replication_mode=mode)

    def dataset_fn(context: InputContext) -> Any:
        start = 10 * context.input_pipeline_id
        return [torch.tensor([start + k]) for k in range(1 + 2 * start)]

    first = dealt(dataset_fn, options)
    assert [shares(next(first)) for _ in range(2)] == [[[0], [10]], [[], [11]]]
    second = dealt(dataset_fn, options)
    second.load_state_dict(reloaded(first.state_dict()))
    assert shares(next(second)) == [[], [12]]


def test_a_position_of_a_loader_needs_a_loader() -> None:
    iterator = iterated([torch.ones(2)])
    with pytest.raises(InvalidArgumentError, match="has no load_state_dict"):
        iterator.load_state_dict({"datasets": [{"elements": 1, "loader": {}}]})


@pytest.mark.parametrize("state", [None, {}, {"elements": 3}])
def test_a_position_is_what_an_iterator_returned(state: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is no state of an iterator"):
        iterated([torch.ones(2)]).load_state_dict(state)


def test_a_position_is_for_as_many_datasets() -> None:
    states = [{"elements": 1}, {"elements": 2}]
    with pytest.raises(InvalidArgumentError, match="2 datasets, but this one reads 1"):
        iterated([torch.ones(2)]).load_state_dict({"datasets": states})


class Once(torch.utils.data.IterableDataset[torch.Tensor]):
    """Gives each element once, however often somebody asks; it may know where it is."""

    def __init__(self, count: int) -> None:
        self.elements = iter([torch.tensor([number, number]) for number in range(count)])

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.elements


def test_looking_takes_nothing_from_a_stream(options: InputOptions) -> None:
    distributed = TwoReplicas().experimental_distribute_dataset(Once(3), options)
    assert distributed.element_spec.specs[0].shape == (None,)
    iterator = iter(distributed)
    assert iterator.element_spec.specs[0].shape == (None,)
    assert steps(iterator) == [[[k], [k]] for k in range(3)]
    assert distributed.element_spec.specs[0].shape == (None,)


def test_looking_takes_nothing_from_the_streams_of_functions() -> None:
    streams = [Once(3), Once(2)]

    def dataset_fn(context: InputContext) -> Any:
        return streams[context.input_pipeline_id]

    options = InputOptions(
        experimental_replication_mode=InputReplicationMode.PER_REPLICA,
        experimental_per_replica_buffer_size=0,
    )
    distributed = TwoReplicas().distribute_datasets_from_function(dataset_fn, options)
    assert distributed.element_spec.specs[0].shape == (None,)
    assert steps(distributed) == [[[k, k], [k, k]] for k in range(2)] + [[[2, 2], []]]


def test_a_position_counts_what_was_looked_at() -> None:
    distributed = TwoReplicas().experimental_distribute_dataset(Once(4))
    later = iter(TwoReplicas().experimental_distribute_dataset(Once(4)))
    assert later.element_spec.specs[0].shape == (None,)
    iterator = iter(distributed)
    assert distributed.element_spec is not None
    next(iterator)
    later.load_state_dict(iterator.state_dict())
    assert steps(later) == steps(iterator) == [[[k], [k]] for k in (1, 2, 3)]


def test_a_loader_that_knows_its_position_goes_on_after_it_was_looked_at() -> None:
    distributed = TwoReplicas(1).experimental_distribute_dataset(Shuffled(6))
    assert distributed.element_spec.shape == (None,)
    iterator = iter(distributed)
    first = shares(next(iterator))
    state = reloaded(iterator.state_dict())
    rest = steps(iterator)
    assert sorted([first, *rest]) == [[[k]] for k in range(6)]
    iterator.load_state_dict(state)
    assert steps(iterator) == rest


def test_looking_leaves_the_order_of_a_loader_alone() -> None:
    def order(looks: bool) -> list[Any]:
        torch.manual_seed(3)
        loader = batches(8, 2, shuffle=True, generator=torch.Generator().manual_seed(1))
        distributed = TwoReplicas(1).experimental_distribute_dataset(loader)
        if looks:
            assert distributed.element_spec.shape == (None,)
        return [steps(distributed), steps(distributed), torch.rand(1).item()]

    assert order(True) == order(False)
