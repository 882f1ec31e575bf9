"""Distributed datasets and their iterators."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stratagem import (
    ContextError,
    DistributedDataset,
    DistributedIterator,
    InputOptions,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
    PerReplica,
    get_strategy,
)
from stratagem.experimental import Optional
from tests.client.batches import Streamed, batches, pairs, shares, steps
from tests.client.two_replicas import TwoReplicas


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


@pytest.fixture(params=[0, 2], ids=["read when asked", "read ahead"])
def options(request: pytest.FixtureRequest) -> InputOptions:
    return InputOptions(experimental_per_replica_buffer_size=request.param)


@pytest.mark.spec("INP-40")
def test_each_iterator_starts_from_the_beginning(
    strategy: TwoReplicas, options: InputOptions
) -> None:
    distributed = strategy.experimental_distribute_dataset(batches(6, 2), options)
    assert isinstance(distributed, DistributedDataset)
    first, second = iter(distributed), iter(distributed)
    assert isinstance(first, DistributedIterator)
    assert iter(first) is first
    assert [shares(next(i)) for i in (first, first, second)] == [
        [[0], [1]],
        [[2], [3]],
        [[0], [1]],
    ]


@pytest.mark.spec("INP-41")
def test_a_step_is_a_nest_of_per_replica_values(
    strategy: TwoReplicas, options: InputOptions
) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(pairs(2, 2), options))
    features, labels = next(iterator)
    assert isinstance(features, PerReplica)
    assert shares(features) == [[[0, 1]], [[2, 3]]]
    assert shares(labels) == [[0], [1]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.spec("INP-41", "OD-3")
def test_one_replica_gets_plain_tensors(options: InputOptions) -> None:
    (value,) = TwoReplicas(1).experimental_distribute_dataset(batches(2, 2), options)
    assert type(value) is torch.Tensor
    assert value.tolist() == [0, 1]


@pytest.mark.spec("INP-42")
def test_get_next_ends_with_an_error(strategy: TwoReplicas, options: InputOptions) -> None:
    dataset = [torch.tensor([5.0, 6.0]), torch.tensor([7.0, 8.0])]
    iterator = iter(strategy.experimental_distribute_dataset(dataset, options))
    total = torch.zeros(())
    with pytest.raises(OutOfRangeError, match="End of sequence"):
        while True:
            total += strategy.reduce("sum", iterator.get_next(), axis=0)
    assert total == 26
    with pytest.raises(OutOfRangeError):
        iterator.get_next()


@pytest.mark.spec("INP-43")
def test_an_optional_ends_a_loop(strategy: TwoReplicas, options: InputOptions) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(batches(3, 2), options))
    seen = []
    optional = iterator.get_next_as_optional()
    while optional.has_value():
        seen.append(shares(optional.get_value()))
        optional = iterator.get_next_as_optional()
    assert seen == [[[0], [1]], [[2], []]]
    with pytest.raises(ValueError, match="no value"):
        optional.get_value()


@pytest.mark.spec("INP-44", "RUN-6")
@pytest.mark.parametrize("method", ["__next__", "get_next", "get_next_as_optional"])
def test_a_replica_cannot_ask_for_input(strategy: TwoReplicas, method: str) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(batches(4, 2)))

    def replica_fn(argument: Any) -> None:
        getattr(argument, method)()

    with pytest.raises(ValueError, match="should be called from outside of replica_fn"):
        strategy.run(replica_fn, (iterator,))
    assert shares(next(iterator)) == [[0], [1]]


@pytest.mark.spec("INP-44", "CTX-33")
def test_input_is_for_one_strategy(strategy: TwoReplicas) -> None:
    iterator = iter(strategy.experimental_distribute_dataset(batches(4, 2)))
    with strategy.scope():
        assert shares(next(iterator)) == [[0], [1]]
    with TwoReplicas().scope(), pytest.raises(ContextError, match="Mixing different"):
        next(iterator)


@pytest.mark.spec("INP-45")
def test_the_spec_of_an_element_tells_its_form(strategy: TwoReplicas) -> None:
    distributed = strategy.experimental_distribute_dataset(pairs(4, 4))
    for spec in (distributed.element_spec, iter(distributed).element_spec):
        features, labels = spec
        assert [s.shape for s in features.specs] == [(None, 2), (None, 2)]
        assert [s.dtype for s in labels.specs] == [torch.int64, torch.int64]
    alone = TwoReplicas(1).experimental_distribute_dataset([torch.ones(2), "text"])
    assert alone.element_spec.shape == (None,)


@pytest.mark.spec("INP-45")
def test_asking_for_the_spec_leaves_the_order_alone(strategy: TwoReplicas) -> None:
    """A loader that shuffles draws from torch's generator, or from its own."""
    orders = []
    for ask, own in itertools.product((False, True), (False, True)):
        torch.manual_seed(7)
        generator = torch.Generator().manual_seed(2) if own else None
        loader = batches(8, 8, shuffle=True, generator=generator)
        dataset = strategy.experimental_distribute_dataset(loader)
        if ask:
            assert dataset.element_spec.specs[0].shape == (None,)
        orders.append(steps(dataset))
    assert orders[:2] == orders[2:]
    assert orders[0] != orders[1]


@pytest.mark.spec("INP-45")
def test_the_spec_of_a_ragged_tensor_leaves_the_ragged_size_open() -> None:
    rows = [torch.ones(2, 5), torch.ones(3, 5)]
    ragged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    distributed = TwoReplicas().experimental_distribute_dataset([ragged])
    assert [spec.shape for spec in distributed.element_spec.specs] == [
        (None, None, 5),
        (None, None, 5),
    ]


@pytest.mark.spec("INP-45", "INP-27")
def test_an_empty_dataset_has_no_spec_and_no_steps(strategy: TwoReplicas) -> None:
    distributed = strategy.experimental_distribute_dataset([])
    assert distributed
    assert steps(distributed) == []
    with pytest.raises(OutOfRangeError, match="no elements"):
        _ = distributed.element_spec


@pytest.mark.spec("INP-47")
def test_a_dataset_knows_its_number_of_steps(strategy: TwoReplicas) -> None:
    split = strategy.experimental_distribute_dataset(batches(10, 4))
    assert (len(split), split.cardinality) == (3, 3)
    dealt = strategy.distribute_datasets_from_function(lambda _: batches(10, 2))
    assert (len(dealt), dealt.cardinality, len(steps(dealt))) == (3, 3, 3)
    streamed = strategy.experimental_distribute_dataset(Streamed([torch.ones(2)]))
    assert streamed.cardinality == -2
    with pytest.raises(InvalidTypeError, match="does not know its length"):
        len(streamed)


@pytest.mark.spec("INP-48")
def test_a_loader_that_shuffles_does_so_in_each_epoch(
    strategy: TwoReplicas, options: InputOptions
) -> None:
    torch.manual_seed(0)
    shuffled = batches(64, 64, shuffle=True)
    distributed = strategy.experimental_distribute_dataset(shuffled, options)
    first, second = steps(distributed), steps(distributed)
    assert first != second
    for ((front, back),) in (first, second):
        assert sorted(front + back) == list(range(64))
    fixed = strategy.experimental_distribute_dataset(list(batches(4, 2)), options)
    assert steps(fixed) == steps(fixed)


@pytest.mark.full("processes of loaders are read by test_input_workers.py")
@pytest.mark.spec("INP-48")
def test_a_loader_with_processes_can_be_distributed(strategy: TwoReplicas) -> None:
    loader = batches(4, 2, num_workers=1, multiprocessing_context="spawn")
    distributed = strategy.experimental_distribute_dataset(loader)
    assert steps(distributed) == [[[0], [1]], [[2], [3]]]


@pytest.mark.spec("INP-49")
def test_datasets_and_iterators_pass_through_replicas(strategy: TwoReplicas) -> None:
    distributed = strategy.experimental_distribute_dataset(batches(2, 2))
    iterator = iter(distributed)

    def replica_fn(first: Any, second: Any) -> Any:
        return {"dataset": first, "iterator": second}

    returned = strategy.run(replica_fn, (distributed, iterator))
    assert returned["dataset"] is distributed
    assert returned["iterator"] is iterator


@pytest.mark.spec("DEF-4")
def test_the_default_strategy_changes_nothing() -> None:
    default, dataset = get_strategy(), [1, 2]
    assert default.experimental_distribute_dataset(dataset) is dataset
    options = InputOptions(experimental_per_replica_buffer_size=-1)
    assert default.experimental_distribute_dataset(dataset, options) is dataset


@pytest.mark.spec("INP-54")
def test_an_optional_is_made_of_a_value_or_of_none() -> None:
    optional = Optional.from_value({"a": torch.ones(2, 3), "b": 1})
    assert optional.has_value()
    assert optional.get_value()["b"].item() == 1
    spec = optional.element_spec
    assert (spec["a"].shape, spec["b"].shape) == ((2, 3), ())
    empty = Optional.empty(spec)
    assert not empty.has_value()
    assert empty.element_spec is spec
    with pytest.raises(InvalidArgumentError, match="has no value"):
        empty.get_value()
    with pytest.raises(InvalidArgumentError, match=r"Optional\.empty"):
        Optional.from_value(None)
