"""Datasets that a function makes: who reads what, and how the data end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from stratagem import (
    ClusterSpec,
    InputContext,
    InvalidTypeError,
    ParameterServerStrategy,
    Strategy,
    device,
)
from stratagem._core import device_names as devices
from stratagem._input.rounds import DealElements
from stratagem.cluster_resolver import SimpleClusterResolver
from tests.client.batches import Streamed, batches, shares, steps
from tests.client.two_replicas import TwoReplicas
from tests.deprecations import warns_to_use


def dealt(strategy: Strategy, dataset: Any) -> list[list[Any]]:
    return steps(strategy.distribute_datasets_from_function(lambda context: dataset))


@pytest.mark.spec("INP-2", "STR-35")
def test_each_element_is_the_batch_of_one_replica(strategy: Strategy) -> None:
    assert dealt(strategy, batches(8, 2)) == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]


@pytest.mark.spec("INP-28")
def test_a_last_incomplete_round_is_padded(strategy: Strategy) -> None:
    assert dealt(strategy, batches(5, 2)) == [[[0, 1], [2, 3]], [[4], []]]


@pytest.mark.spec("INP-28")
def test_the_last_element_of_nine_is_not_lost(strategy: Strategy) -> None:
    assert dealt(strategy, batches(9, 2))[-1] == [[8], []]
    assert len(dealt(strategy, batches(9, 2, drop_last=True))) == 2


@pytest.mark.spec("INP-27", "INP-28")
def test_padding_has_the_form_of_data(strategy: Strategy) -> None:
    element = {"x": torch.ones(2, 3, dtype=torch.float16), "y": torch.tensor([1, 2])}
    dataset = strategy.distribute_datasets_from_function(lambda context: [element])
    (value,) = dataset
    padding = strategy.experimental_local_results(value)[1]
    assert padding["x"].shape == (0, 3)
    assert padding["x"].dtype == torch.float16
    assert padding["y"].shape == (0,)


@pytest.mark.spec("INP-29")
def test_scalars_and_dropping_loaders_lose_nothing_either(strategy: Strategy) -> None:
    """TensorFlow drops the last round silently where shapes are static."""
    assert dealt(strategy, [torch.tensor(k) for k in range(3)]) == [[0, 1], [2, []]]
    assert dealt(strategy, batches(6, 2, drop_last=True)) == [
        [[0, 1], [2, 3]],
        [[4, 5], []],
    ]


@pytest.mark.spec("INP-27")
def test_a_step_ends_only_when_no_replica_has_data() -> None:
    assert dealt(TwoReplicas(3), batches(4, 1)) == [[[0], [1], [2]], [[3], [], []]]


@pytest.mark.spec("INP-30c")
def test_an_infinite_dataset_is_never_padded(strategy: Strategy) -> None:

    def dataset() -> Any:
        return (torch.tensor([k]) for k in itertools.count())

    distributed = strategy.distribute_datasets_from_function(lambda context: dataset)
    first = itertools.islice(distributed, 3)
    assert steps(first) == [[[0], [1]], [[2], [3]], [[4], [5]]]


@pytest.mark.spec("INP-6")
def test_whole_rounds_drop_what_is_left_over() -> None:
    dealing, reader = DealElements(2, whole_rounds=True), iter(range(11))
    rounds: list[Any] = []
    with pytest.raises(StopIteration):
        while True:
            rounds += dealing.rounds([reader]).rounds
    assert rounds == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert dealing.steps([11]) == 5


@pytest.mark.spec("INP-49e", "INP-49d")
def test_the_function_is_called_once_when_the_dataset_is_made(
    strategy: Strategy,
) -> None:
    calls: list[tuple[InputContext, str]] = []

    def dataset_fn(context: InputContext) -> Any:
        calls.append((context, devices.current()))
        return batches(4, 1)

    with device("GPU:0") if torch.cuda.is_available() else device("CPU:1"):
        distributed = strategy.distribute_datasets_from_function(dataset_fn)
    cpu = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert calls == [(InputContext(1, 0, 2), cpu)]
    assert steps(distributed) == steps(distributed)
    assert len(calls) == 1


@pytest.mark.spec("ENU-13", "INP-2")
def test_the_context_gives_the_batch_size_of_a_replica(strategy: Strategy) -> None:

    def dataset_fn(context: InputContext) -> Any:
        return batches(4, context.get_per_replica_batch_size(4))

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    assert steps(distributed) == [[[0, 1], [2, 3]]]


@pytest.mark.spec("INP-49d")
@pytest.mark.parametrize(
    ("task_type", "consistency", "expected"),
    [
        ("chief", "async", InputContext(3, 0, 1)),
        ("worker", "async", InputContext(3, 1, 1)),
        ("worker", "sync", InputContext(3, 1, 3)),
    ],
)
def test_workers_of_a_cluster_are_told_which_they_are(
    task_type: str, consistency: str, expected: InputContext
) -> None:
    spec = ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]})
    resolver = SimpleClusterResolver(spec, task_type=task_type, task_id=0)
    strategy = ParameterServerStrategy(resolver, consistency=consistency)
    told = []

    def dataset_fn(context: InputContext) -> Any:
        told.append(context)
        return [torch.ones(1)]

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    assert told == [expected]
    assert steps(dataset) == [[[1]]]
    strategy.close()


@pytest.mark.spec("INP-2", "INP-40")
@pytest.mark.parametrize(
    "dataset",
    [
        [torch.tensor([0]), torch.tensor([1])],
        Streamed([torch.tensor([0]), torch.tensor([1])]),
        batches(2, 1),
        lambda: (torch.tensor([k]) for k in range(2)),
    ],
    ids=["list", "IterableDataset", "DataLoader", "generator function"],
)
def test_every_kind_of_dataset_is_read_in_its_order(strategy: Strategy, dataset: Any) -> None:
    distributed = strategy.distribute_datasets_from_function(lambda context: dataset)
    assert steps(distributed) == [[[0], [1]]]
    assert steps(distributed) == [[[0], [1]]]


@pytest.mark.spec("INP-26")
def test_a_function_that_is_no_dataset_is_named(strategy: Strategy) -> None:
    distributed = strategy.distribute_datasets_from_function(lambda context: len)
    with pytest.raises(TypeError):
        next(iter(distributed))
    distributed = strategy.distribute_datasets_from_function(lambda context: lambda: 3)
    with pytest.raises(InvalidTypeError, match="returned int"):
        next(iter(distributed))


@pytest.mark.spec("STR-34")
def test_the_old_name_forwards_and_says_so(strategy: Strategy) -> None:
    with warns_to_use("distribute_datasets_from_function"):
        distributed = strategy.experimental_distribute_datasets_from_function(
            lambda context: batches(2, 1)
        )
    assert [shares(value) for value in distributed] == [[[0], [1]]]
