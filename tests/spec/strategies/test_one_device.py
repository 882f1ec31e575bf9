"""Everything on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import ConfigProto, OneDeviceStrategy, Variable
from stratagem._core import device_names

CPU_1 = "/job:localhost/replica:0/task:0/device:CPU:1"

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> OneDeviceStrategy:
    return OneDeviceStrategy("/cpu:1")


@pytest.mark.spec("OD-1")
def test_there_is_one_replica_on_the_device(strategy: OneDeviceStrategy) -> None:
    def fn(x: int) -> tuple[int, str]:
        return x + 1, device_names.current()

    assert strategy.num_replicas_in_sync == 1
    assert strategy.extended.worker_devices == (CPU_1,)
    assert strategy.extended.parameter_devices == (CPU_1,)
    assert strategy.run(fn, (4,)) == (5, CPU_1)


@pytest.mark.spec("OD-2")
def test_update_calls_the_function_with_the_variable(
    strategy: OneDeviceStrategy,
) -> None:
    with strategy.scope():
        variable = Variable(1.0)

    def fn(v: Variable, delta: float) -> tuple[bool, str]:
        v.assign_add(delta)
        assert stratagem.in_cross_replica_context()
        return v is variable, stratagem.get_strategy().extended._current_device()

    assert strategy.extended.update(variable, fn, (2.0,)) == (True, CPU_1)
    assert strategy.extended.update(variable, lambda v: 1, group=False) == (1,)
    assert variable.numpy() == 3.0


def test_a_session_stays_as_it_is(strategy: OneDeviceStrategy) -> None:
    given = ConfigProto(device_filters=["/job:ps"])
    assert strategy.update_config_proto(given) == given


def test_an_adopted_module_stays_the_users_own(strategy: OneDeviceStrategy) -> None:
    with strategy.scope():
        module = nn.Linear(2, 2)
    weight = module.weight
    assert type(module._parameters) is dict
    assert strategy.run(lambda: module.weight) is weight


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("CPU:9", ValueError),
        ("nonsense", ValueError),
        ("/job:worker/task:1/device:CPU:0", NotImplementedError),
        (3, TypeError),
    ],
)
def test_a_device_that_is_not_here_is_refused(device: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        OneDeviceStrategy(device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_modules_move_to_the_gpu() -> None:
    strategy = OneDeviceStrategy("cuda:0")
    with strategy.scope():
        module = nn.Linear(2, 2)
    assert module.weight.device == torch.device("cuda:0")
    assert strategy.run(lambda: torch.ones(1)).device.type == "cuda"
