"""Replicas on several devices: which, and what is said about them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import stratagem
from stratagem import MirroredStrategy, Variable

CPU = "/job:localhost/replica:0/task:0/device:CPU:"

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.mark.spec("MS-1")
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_gpu_has_a_replica() -> None:
    count = torch.cuda.device_count()
    assert MirroredStrategy().num_replicas_in_sync == count


@pytest.mark.spec("MS-3")
@pytest.mark.parametrize(
    "devices",
    [
        ["CPU:0", "/job:worker/task:1/device:CPU:0"],
        ["/job:worker/device:CPU:0", "/job:worker/device:CPU:1"],
    ],
)
def test_local_and_remote_devices_do_not_mix(devices: list[str]) -> None:
    with pytest.raises(ValueError, match="all local, or all name a job and a task"):
        MirroredStrategy(devices)


def test_devices_that_are_not_configured_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no device .*CPU:4, it has .*set_logical_cpus"):
        MirroredStrategy(["CPU:0", "CPU:4"])


STRATEGIES: list[Callable[[], stratagem.Strategy]] = [
    MirroredStrategy,
    stratagem.CentralStorageStrategy,
    lambda: stratagem.OneDeviceStrategy("CPU:0"),
]


@pytest.mark.parametrize("build", STRATEGIES)
def test_a_deep_copy_is_a_strategy_of_its_own(
    build: Callable[[], stratagem.Strategy],
) -> None:
    original = build()
    with original.scope():
        module, mine = torch.nn.Linear(2, 2), Variable(1.0)
    optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters()))
    original.run(lambda: (module(torch.ones(2)).sum().backward(), optimizer.step()))
    twin = copy.deepcopy(original)
    assert twin.extended.worker_devices == original.extended.worker_devices
    with twin.scope():
        other = Variable(2.0)
        with pytest.raises(RuntimeError, match="Mixing different"):
            original.run(lambda: None)
    assert other.distribute_strategy is twin
    assert mine.distribute_strategy is original
    before = module.weight.detach().clone()
    twin.run(lambda: None)
    assert torch.equal(module.weight, before)
