"""Variables on one device, replicas on several."""

from __future__ import annotations

import pytest
import torch

from stratagem import (
    CentralStorageStrategy,
    PerReplica,
    Variable,
)
from tests.client.batches import batches

CPU = "/job:localhost/replica:0/task:0/device:CPU:"

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> CentralStorageStrategy:
    return CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2")


@pytest.mark.spec("CS-1", "CS-2", "CS-3")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs are the default")
def test_without_gpus_there_is_one_replica_beside_its_variables() -> None:
    extended = CentralStorageStrategy().extended
    assert extended.worker_devices == [f"{CPU}0"]
    assert extended.parameter_devices == (f"{CPU}0",)


@pytest.mark.spec("CS-1", "CS-2")
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="there is not one GPU")
def test_the_only_gpu_has_the_variables() -> None:
    extended = CentralStorageStrategy().extended
    assert extended.parameter_devices == tuple(extended.worker_devices)
    assert CentralStorageStrategy(["GPU:0", "CPU:0"]).extended.parameter_devices == (
        "/device:CPU:0",
    )


@pytest.mark.spec("CS-2")
def test_variables_of_several_replicas_are_on_the_first_cpu() -> None:
    several = CentralStorageStrategy(["CPU:1", "CPU:2"])
    assert several.extended.parameter_devices == ("/device:CPU:0",)
    one = CentralStorageStrategy(["cpu:1"])
    assert one.extended.parameter_devices == (f"{CPU}1",)


@pytest.mark.spec("CS-3")
def test_the_parameter_device_is_shown_as_given(
    strategy: CentralStorageStrategy,
) -> None:
    assert strategy.extended.worker_devices == [f"{CPU}0", f"{CPU}1"]
    assert strategy.extended.parameter_devices == ("CPU:2",)
    with strategy.scope():
        assert Variable(1.0).device_name == f"{CPU}2"


@pytest.mark.spec("CS-3")
@pytest.mark.parametrize(
    ("devices", "parameter_device", "message"),
    [
        (["CPU:0", "cpu:0"], None, "No duplicates allowed"),
        (["CPU:0", "CPU:9"], None, "no device"),
        (["CPU:0"], "CPU:9", "no device"),
        (["CPU:0"], "nowhere", "not a device name"),
    ],
)
def test_devices_are_here_and_distinct(
    devices: list[str], parameter_device: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CentralStorageStrategy(devices, parameter_device)


@pytest.mark.spec("CS-4")
def test_it_says_what_it_is(strategy: CentralStorageStrategy) -> None:
    extended = strategy.extended
    assert extended.experimental_between_graph
    assert extended.experimental_should_init
    assert extended.should_checkpoint
    assert extended.should_save_summary
    assert strategy.cluster_resolver is None
    assert strategy.num_replicas_in_sync == 2


@pytest.mark.spec("CS-5")
def test_running_and_reducing(strategy: CentralStorageStrategy) -> None:
    halves = PerReplica([torch.arange(4), torch.arange(4, 8)])
    with strategy.scope():
        result = strategy.run(lambda x: x, (halves,))
    total = strategy.reduce("sum", result, axis=None)
    assert total.tolist() == [4, 6, 8, 10]
    assert strategy.reduce("sum", result, axis=0) == 28
    assert strategy.reduce("sum", {"a": result})["a"].tolist() == [4, 6, 8, 10]
    assert strategy.gather(result, axis=0).tolist() == list(range(8))


@pytest.mark.spec("CS-7")
def test_one_replica_gets_batches_as_plain_tensors() -> None:
    strategy = CentralStorageStrategy(["CPU:0"])
    distributed = strategy.experimental_distribute_dataset(batches(5, 2))
    assert [batch.tolist() for batch in distributed] == [[0, 1], [2, 3], [4]]


@pytest.mark.spec("CS-8")
def test_several_replicas_share_batches_not_numbers(
    strategy: CentralStorageStrategy,
) -> None:
    numbers = [torch.tensor(number) for number in range(10)]
    with pytest.raises(IndexError, match="batch the dataset"):
        next(iter(strategy.experimental_distribute_dataset(numbers)))
    (halves,) = strategy.experimental_distribute_dataset(batches(8, 8))
    result = strategy.run(lambda part: part, (halves,))
    assert strategy.reduce("sum", result, axis=None).tolist() == [4, 6, 8, 10]
    assert strategy.reduce("sum", result, axis=0) == 28
