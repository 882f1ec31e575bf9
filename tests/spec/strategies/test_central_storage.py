"""Variables on one device, replicas on several."""

from __future__ import annotations

import pytest
import torch

from stratagem import (
    CentralStorageStrategy,
)
from tests.client.batches import batches

CPU = "/job:localhost/replica:0/task:0/device:CPU:"

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> CentralStorageStrategy:
    return CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2")


@pytest.mark.spec("CS-1", "CS-2")
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="there is not one GPU")
def test_the_only_gpu_has_the_variables() -> None:
    extended = CentralStorageStrategy().extended
    assert extended.parameter_devices == tuple(extended.worker_devices)
    assert CentralStorageStrategy(["GPU:0", "CPU:0"]).extended.parameter_devices == (
        "/device:CPU:0",
    )


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
