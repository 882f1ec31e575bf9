"""Input options under every strategy."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from stratagem import (
    InputContext,
    InputOptions,
    InputReplicationMode,
    InvalidArgumentError,
    InvalidTypeError,
    Strategy,
    UnimplementedError,
)
from stratagem._core import options as core_options
from stratagem._input.pipeline import splitting_pipeline
from stratagem._input.sharding import InputWorker
from tests.client.batches import batches, steps

PER_REPLICA = InputReplicationMode.PER_REPLICA

_PLACED = pytest.mark.filterwarnings("ignore:.*place_dataset_on_device")


def counted(context: InputContext) -> list[torch.Tensor]:
    """Four elements for the first pipeline, five for the second, and so on."""
    pipeline = context.input_pipeline_id
    return [torch.tensor([10 * pipeline + k]) for k in range(4 + pipeline)]


@pytest.mark.spec("ENU-11")
def test_options_have_the_defaults_of_tensorflow() -> None:
    assert InputOptions() == (True, InputReplicationMode.PER_WORKER, False, 1)
    assert InputOptions(None).experimental_fetch_to_device is True
    assert InputOptions(False).experimental_fetch_to_device is False
    replaced = InputOptions()._replace(experimental_per_replica_buffer_size=3)
    assert replaced.experimental_per_replica_buffer_size == 3
    assert replaced == InputOptions(experimental_per_replica_buffer_size=3)


@pytest.mark.spec("INP-30")
def test_by_default_the_function_is_called_per_worker(strategy: Strategy) -> None:
    told: list[InputContext] = []

    def dataset_fn(context: InputContext) -> Any:
        told.append(context)
        return counted(context)

    distributed = strategy.distribute_datasets_from_function(dataset_fn, InputOptions())
    assert steps(distributed) == [[[0], [1]], [[2], [3]]]
    assert told == [InputContext(1, 0, 2)]


@pytest.mark.spec("INP-30", "INP-36")
def test_elements_go_to_the_devices_of_their_replicas() -> None:
    worker = InputWorker(InputContext(1, 0, 2), (torch.device("meta"),) * 2)
    fetched = splitting_pipeline(batches(4, 4), worker)
    assert fetched.depth == 1
    assert {part.device.type for part in next(fetched.open()).parts} == {"meta"}
    kept = splitting_pipeline(batches(4, 4), worker, InputOptions(False))
    assert {part.device.type for part in next(kept.open()).parts} == {"cpu"}


@pytest.mark.spec("INP-31")
@_PLACED
def test_a_dataset_cannot_be_placed_for_a_worker(strategy: Strategy) -> None:
    options = InputOptions(experimental_place_dataset_on_device=True)
    with pytest.raises(ValueError, match="must also specify `PER_REPLICA`"):
        strategy.distribute_datasets_from_function(counted, options)
    distributed = strategy.experimental_distribute_dataset(batches(2, 2), options)
    assert steps(distributed) == [[[0], [1]]]


@pytest.mark.spec("INP-32")
@_PLACED
def test_a_placed_dataset_needs_no_fetching(strategy: Strategy) -> None:
    options = InputOptions(True, PER_REPLICA, True)
    with pytest.raises(ValueError, match="can not be set to True when"):
        strategy.distribute_datasets_from_function(counted, options)
    options = InputOptions(False, PER_REPLICA, True)
    distributed = strategy.distribute_datasets_from_function(counted, options)
    assert steps(distributed)[0] == [[0], [10]]


@pytest.mark.spec("INP-31")
def test_placing_a_dataset_is_said_to_have_no_effect(strategy: Strategy) -> None:
    core_options.warned.clear()
    options = InputOptions(False, PER_REPLICA, True)
    with pytest.warns(UserWarning, match="place_dataset_on_device has no effect"):
        strategy.distribute_datasets_from_function(counted, options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy.distribute_datasets_from_function(counted, options)


@pytest.mark.spec("INP-33", "INP-34")
def test_one_dataset_cannot_be_split_per_replica(strategy: Strategy) -> None:
    options = InputOptions(experimental_replication_mode=PER_REPLICA)
    with pytest.raises(UnimplementedError, match="only supported in"):
        strategy.experimental_distribute_dataset(batches(2, 2), options)
    options = InputOptions(False, experimental_per_replica_buffer_size=2)
    distributed = strategy.experimental_distribute_dataset(batches(2, 2), options)
    assert steps(distributed) == [[[0], [1]]]


@pytest.mark.spec("INP-35")
def test_each_replica_may_have_a_pipeline_of_its_own(strategy: Strategy) -> None:
    told: list[InputContext] = []

    def dataset_fn(context: InputContext) -> Any:
        told.append(context)
        return counted(context)

    options = InputOptions(experimental_replication_mode=PER_REPLICA)
    distributed = strategy.distribute_datasets_from_function(dataset_fn, options)
    assert told == [InputContext(2, 0, 2), InputContext(2, 1, 2)]
    assert steps(distributed) == [
        [[0], [10]],
        [[1], [11]],
        [[2], [12]],
        [[3], [13]],
        [[], [14]],
    ]
    assert len(distributed) == 5


@pytest.mark.spec("INP-36")
def test_not_fetching_changes_the_placement_alone(strategy: Strategy) -> None:
    calls: list[InputContext] = []

    def dataset_fn(context: InputContext) -> Any:
        calls.append(context)
        return batches(3, 1)

    options = InputOptions(experimental_fetch_to_device=False)
    distributed = strategy.distribute_datasets_from_function(dataset_fn, options)
    assert steps(distributed) == [[[0], [1]], [[2], []]]
    assert len(calls) == 1


@pytest.mark.spec("INP-37")
@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_buffer_size_does_not_change_the_values(strategy: Strategy, size: int) -> None:
    options = InputOptions(experimental_per_replica_buffer_size=size)
    distributed = strategy.experimental_distribute_dataset(batches(10, 4), options)
    expected = strategy.experimental_distribute_dataset(batches(10, 4))
    assert steps(distributed) == steps(expected)


@pytest.mark.spec("INP-37")
def test_a_buffer_size_is_not_negative(strategy: Strategy) -> None:
    options = InputOptions(experimental_per_replica_buffer_size=-1)
    with pytest.raises(ValueError, match=">=0, not -1"):
        strategy.experimental_distribute_dataset(batches(2, 2), options)
    with pytest.raises(ValueError, match=">=0, not -1"):
        strategy.distribute_datasets_from_function(counted, options)


@pytest.mark.spec("INP-37")
def test_a_buffer_size_is_an_integer(strategy: Strategy) -> None:
    options = InputOptions(experimental_per_replica_buffer_size="2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=">=0, not '2'"):
        strategy.experimental_distribute_dataset(batches(2, 2), options)


@pytest.mark.spec("INP-31")
def test_options_are_options(strategy: Strategy) -> None:
    with pytest.raises(InvalidTypeError, match=r"must be InputOptions\(\.\.\.\), not dict"):
        strategy.distribute_datasets_from_function(counted, {})  # type: ignore[arg-type]
    by_name = InputOptions(experimental_replication_mode="PER_REPLICA")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="must be one of InputReplicationMo"):
        strategy.distribute_datasets_from_function(counted, by_name)


@pytest.mark.spec("INP-30")
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("depth", [0, 2])
def test_elements_arrive_on_the_gpu_with_their_values(depth: int) -> None:
    """They go through pinned memory, read ahead or not."""
    gpu = torch.device("cuda", 0)
    worker = InputWorker(InputContext(1, 0, 2), (gpu, gpu))
    options = InputOptions(experimental_per_replica_buffer_size=depth)
    batch = torch.arange(2.0**20)
    total = 0.0
    pipeline = splitting_pipeline([batch + k for k in range(20)], worker, options)
    for number, each in enumerate(pipeline.open()):
        assert {part.device for part in each.parts} == {gpu}
        total = sum(float(part.double().sum()) for part in each.parts)
        assert total == float((batch + number).double().sum())
