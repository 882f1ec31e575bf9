"""The iterators of the first version of the API."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stratagem import (
    InputContext,
    InputIterator,
    OutOfRangeError,
    Strategy,
    get_strategy,
    in_cross_replica_context,
)
from tests.client.batches import batches, pairs, shares
from tests.client.two_replicas import TwoReplicas
from tests.deprecations import warns_to_use


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def dataset_iterator(strategy: Strategy, dataset: Any) -> InputIterator:
    with warns_to_use("experimental_distribute_dataset"):
        return strategy.make_dataset_iterator(dataset)


def input_fn_iterator(strategy: Strategy, input_fn: Callable[[InputContext], Any]) -> InputIterator:
    with warns_to_use("distribute_datasets_from_function"):
        return strategy.make_input_fn_iterator(input_fn)


def run(strategy: Strategy, *args: Any) -> Any:
    with warns_to_use("run"):
        return strategy.experimental_run(*args)


def rest(iterator: InputIterator) -> list[Any]:
    """Return what is left until the iterator raises OutOfRangeError."""
    values = []
    with pytest.raises(OutOfRangeError):
        while True:
            values.append(shares(iterator.get_next()))
    return values


@pytest.mark.spec("STR-30", "INP-3")
def test_a_dataset_iterator_splits_global_batches(strategy: TwoReplicas) -> None:
    iterator = dataset_iterator(strategy, batches(5, 4))
    assert isinstance(iterator, InputIterator)
    assert rest(iterator) == [[[0, 1], [2, 3]], [[4], []]]


@pytest.mark.spec("INP-49b")
def test_an_iterator_can_be_started_again(strategy: TwoReplicas) -> None:
    iterator = dataset_iterator(strategy, batches(4, 2))
    assert iterator.initialize() == []
    assert shares(iterator.get_next()) == [[0], [1]]
    iterator.initialize()
    assert rest(iterator) == [[[0], [1]], [[2], [3]]]
    assert iterator.initializer == []
    assert rest(iterator) == [[[0], [1]], [[2], [3]]]


@pytest.mark.spec("INP-49b")
def test_an_iterator_tells_the_form_of_its_elements(strategy: TwoReplicas) -> None:
    iterator = dataset_iterator(strategy, pairs(4, 2))
    assert tuple(iterator.output_shapes) == ((None, 2), (None,))
    assert tuple(iterator.output_types) == (torch.float32, torch.int64)
    assert tuple(iterator.output_classes) == (torch.Tensor, torch.Tensor)


@pytest.mark.spec("INP-23", "INP-22")
def test_a_dataset_iterator_needs_batches(strategy: TwoReplicas) -> None:
    with pytest.raises(ValueError, match="Unable to get batched dataset"):
        dataset_iterator(strategy, [1, 2]).get_next()
    with pytest.raises(ValueError, match="divided evenly"):
        dataset_iterator(strategy, batches(3, 3))
    assert rest(dataset_iterator(strategy, batches(3, 4))) == [[[0, 1], [2]]]


@pytest.mark.spec("STR-31", "INP-4", "INP-49c", "INP-49d")
def test_an_input_function_is_told_its_context(strategy: TwoReplicas) -> None:
    told = []

    def input_fn(context: InputContext) -> Any:
        told.append(context)
        return batches(4, 2)

    iterator = input_fn_iterator(strategy, input_fn)
    assert told == [InputContext(1, 0, 2)]
    assert rest(iterator) == [[[0, 1], [2, 3]]]
    iterator.initialize()
    assert rest(iterator) == [[[0, 1], [2, 3]]]
    assert len(told) == 1


@pytest.mark.spec("INP-49c")
@pytest.mark.parametrize("error", [StopIteration, OutOfRangeError])
def test_an_input_function_may_return_a_callable(
    strategy: TwoReplicas, error: type[Exception]
) -> None:
    numbers = itertools.count()

    def element() -> torch.Tensor:
        number = next(numbers)
        if number == 4:
            raise error("the end")
        return torch.tensor([number])

    iterator = input_fn_iterator(strategy, lambda context: element)
    assert rest(iterator) == [[[0], [1]], [[2], [3]]]


@pytest.mark.spec("INP-49c")
def test_a_generator_function_is_a_dataset(strategy: TwoReplicas) -> None:

    def elements() -> Any:
        yield from (torch.tensor([k]) for k in range(2))

    assert rest(input_fn_iterator(strategy, lambda context: elements)) == [[[0], [1]]]


@pytest.mark.spec("INP-30b")
def test_incomplete_rounds_are_dropped(strategy: TwoReplicas) -> None:
    iterator = input_fn_iterator(strategy, lambda context: batches(5, 1))
    assert rest(iterator) == [[[0], [1]], [[2], [3]]]


@pytest.mark.spec("INP-49c")
@pytest.mark.parametrize("returned", [3, None, torch.ones(2), "text", iter([1])])
def test_an_input_function_returns_a_dataset_or_a_callable(
    strategy: TwoReplicas, returned: object
) -> None:
    with pytest.raises(ValueError, match=r"must return a tf\.data\.Dataset or a call"):
        input_fn_iterator(strategy, lambda context: returned)


@pytest.mark.spec("STR-22")
def test_a_run_takes_one_input_as_one_argument(strategy: TwoReplicas) -> None:
    iterator = dataset_iterator(strategy, pairs(4, 2))

    def fn(batch: Any) -> torch.Tensor:
        _, labels = batch
        assert isinstance(labels, torch.Tensor)
        return labels * 10

    assert shares(run(strategy, fn, iterator)) == [[0], [10]]
    assert shares(run(strategy, fn, iterator)) == [[20], [30]]
    with pytest.raises(OutOfRangeError):
        run(strategy, fn, iterator)


@pytest.mark.spec("STR-22")
def test_input_is_asked_for_inside_the_scope(strategy: TwoReplicas) -> None:
    seen = []

    def elements() -> Any:
        seen.append((get_strategy(), in_cross_replica_context()))
        yield torch.tensor([1, 2])

    run(strategy, lambda x: x, dataset_iterator(strategy, elements))
    assert seen == [(strategy, True)]


@pytest.mark.spec("DEF-7")
def test_the_default_strategy_has_plain_iterators() -> None:
    default = get_strategy()
    for iterator in (
        dataset_iterator(default, batches(2, 1)),
        input_fn_iterator(default, lambda context: batches(2, 1)),
    ):
        assert iterator.get_next().tolist() == [0]
        assert iterator.initialize() == iterator.initializer == []
        assert iterator.get_next_as_optional().get_value().tolist() == [0]
        assert run(default, lambda x: x + 1, iterator).tolist() == [2]
        assert not iterator.get_next_as_optional().has_value()


@pytest.mark.spec("STR-32", "EXT-18", "INP-50")
def test_rows_of_arrays_become_a_dataset(strategy: TwoReplicas) -> None:
    array = np.arange(4.0, dtype=np.float32)
    with warns_to_use("experimental_distribute_dataset, with a DataLoader"):
        dataset = strategy.experimental_make_numpy_dataset(array)
    array[:] = 0
    loader = torch.utils.data.DataLoader(dataset, batch_size=2)
    distributed = strategy.experimental_distribute_dataset(loader)
    doubled = [strategy.run(lambda x: 2 * x, (x,)) for x in distributed]
    assert [shares(value) for value in doubled] == [[[0], [2]], [[4], [6]]]


@pytest.mark.spec("INP-50")
def test_structures_of_arrays_are_kept_and_lists_stacked(strategy: TwoReplicas) -> None:
    extended = strategy.extended
    both = {
        "x": (np.arange(6).reshape(3, 2), np.ones(3)),
        "s": np.array(["a", "b", "c"]),
    }
    row = extended.experimental_make_numpy_dataset(both, session=None)[1]
    assert row["x"][0].tolist() == [2, 3]
    assert row["x"][1].dtype == torch.float64
    assert row["s"] == "b"
    stacked = extended.experimental_make_numpy_dataset([np.zeros(2), np.ones(2)])
    rows = [stacked[index].tolist() for index in range(len(stacked))]
    assert rows == [[0, 0], [1, 1]]
    with pytest.raises(IndexError, match="row 2 of a dataset that has 2"):
        _ = stacked[2]


@pytest.mark.spec("INP-50")
@pytest.mark.parametrize("arrays", [(np.ones(2), np.ones(3)), np.float32(1), {}])
def test_arrays_of_a_dataset_have_equally_many_rows(strategy: TwoReplicas, arrays: Any) -> None:
    with pytest.raises(ValueError, match="rows"):
        strategy.extended.experimental_make_numpy_dataset(arrays)
