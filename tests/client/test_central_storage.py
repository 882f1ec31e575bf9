"""Variables on one device, replicas on several."""

from __future__ import annotations

import pytest
import torch

from stratagem import (
    CentralStorageStrategy,
    Mirrored,
    PerReplica,
    Variable,
    VariableAggregation,
)
from tests.client.two_replicas import number, shared

CPU = "/job:localhost/replica:0/task:0/device:CPU:"
SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.fixture
def strategy() -> CentralStorageStrategy:
    return CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs are the default")
def test_without_gpus_there_is_one_replica_beside_its_variables() -> None:
    """CS-1, CS-2, CS-3: the defaulted device in its full form."""
    extended = CentralStorageStrategy().extended
    assert extended.worker_devices == [f"{CPU}0"]
    assert extended.parameter_devices == (f"{CPU}0",)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="there is not one GPU")
def test_the_only_gpu_has_the_variables() -> None:
    """CS-1, CS-2."""
    extended = CentralStorageStrategy().extended
    assert extended.parameter_devices == tuple(extended.worker_devices)
    assert CentralStorageStrategy(["GPU:0", "CPU:0"]).extended.parameter_devices == (
        "/device:CPU:0",
    )


def test_variables_of_several_replicas_are_on_the_first_cpu() -> None:
    """CS-2: the only compute device if there is exactly one."""
    several = CentralStorageStrategy(["CPU:1", "CPU:2"])
    assert several.extended.parameter_devices == ("/device:CPU:0",)
    one = CentralStorageStrategy(["cpu:1"])
    assert one.extended.parameter_devices == (f"{CPU}1",)


def test_the_parameter_device_is_shown_as_given(
    strategy: CentralStorageStrategy,
) -> None:
    """CS-3, EXT-11, EXT-12: compute devices are a list, in full."""
    assert strategy.extended.worker_devices == [f"{CPU}0", f"{CPU}1"]
    assert strategy.extended.parameter_devices == ("CPU:2",)
    with strategy.scope():
        assert Variable(1.0).device_name == f"{CPU}2"


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
    """CS-3, ODD-23: duplicates are refused as by MirroredStrategy."""
    with pytest.raises(ValueError, match=message):
        CentralStorageStrategy(devices, parameter_device)


def test_it_says_what_it_is(strategy: CentralStorageStrategy) -> None:
    """CS-4, EXT-16, EXT-17."""
    extended = strategy.extended
    assert extended.experimental_between_graph
    assert extended.experimental_should_init
    assert extended.should_checkpoint
    assert extended.should_save_summary
    assert strategy.cluster_resolver is None
    assert strategy.num_replicas_in_sync == 2


def test_running_and_reducing(strategy: CentralStorageStrategy) -> None:
    """CS-5, CS-8, RED-20: the page's numbers, from `[0..3]` and `[4..7]`."""
    halves = PerReplica([torch.arange(4), torch.arange(4, 8)])
    with strategy.scope():
        result = strategy.run(lambda x: x, (halves,))
    total = strategy.reduce("sum", result, axis=None)
    assert total.tolist() == [4, 6, 8, 10]
    assert strategy.reduce("sum", result, axis=0) == 28
    assert strategy.reduce("sum", {"a": result})["a"].tolist() == [4, 6, 8, 10]
    assert strategy.gather(result, axis=0).tolist() == list(range(8))


def test_a_replicas_own_values_can_be_had(strategy: CentralStorageStrategy) -> None:
    """LOC-1: all values of the worker."""
    result = strategy.run(lambda: torch.tensor(number()))
    assert strategy.experimental_local_results(result) == (0, 1)


def test_updates_run_once_where_the_variable_is(
    strategy: CentralStorageStrategy,
) -> None:
    """VWR-4, EXT-4, EXT-6, EXT-7, REG-12."""
    variable, other = shared(strategy, 1.0), Variable(1.0)
    extended = strategy.extended
    calls: list[str] = []

    def fn(v: Variable, x: float) -> float:
        calls.append(extended._current_device())
        v.assign_add(x)
        return x

    assert extended.update(variable, fn, (2.0,)) == 2.0
    assert extended.update(variable, fn, (Mirrored([1.0, 5.0]),), group=False) == (1.0,)
    assert calls == [f"{CPU}2", f"{CPU}2"]
    assert variable.numpy() == 4.0
    extended.update(other, lambda v: v.assign(7.0))
    assert other.numpy() == 7.0
    with pytest.raises(ValueError, match="must be a Variable"):
        extended.update(1.0, lambda v: None)
    assert extended.non_slot_devices([variable]) is variable
    assert extended.update_non_slot(variable, lambda: 3) == 3
    with pytest.raises(ValueError, match="empty"):
        extended.non_slot_devices([])
