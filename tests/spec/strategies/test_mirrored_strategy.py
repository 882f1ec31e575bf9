"""Replicas on several devices: which, and what is said about them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ConfigProto, MirroredStrategy, PerReplica, Variable, config
from stratagem._core import device_names

CPU = "/job:localhost/replica:0/task:0/device:CPU:"

pytestmark = pytest.mark.usefixtures("four_cpus")


@pytest.mark.spec("MS-1")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPUs are the default")
@pytest.mark.parametrize("devices", [None, []])
def test_without_gpus_every_logical_cpu_has_a_replica(devices: Any) -> None:
    config.set_logical_cpus(3)
    strategy = MirroredStrategy(devices)
    assert strategy.extended.worker_devices == (f"{CPU}0", f"{CPU}1", f"{CPU}2")
    assert strategy.num_replicas_in_sync == 3


@pytest.mark.spec("MS-1")
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_every_gpu_has_a_replica() -> None:
    count = torch.cuda.device_count()
    assert MirroredStrategy().num_replicas_in_sync == count


@pytest.mark.spec("MS-2")
@pytest.mark.parametrize("twin", ["CPU:0", "/cpu:0", f"{CPU}0"])
def test_no_device_has_two_replicas(twin: str) -> None:
    with pytest.raises(ValueError, match="No duplicates allowed"):
        MirroredStrategy(["CPU:0", twin])


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


@pytest.mark.spec("MS-4")
def test_devices_of_other_processes_are_refused() -> None:
    remote = [f"/job:worker/task:{task}/device:CPU:0" for task in range(2)]
    with pytest.raises(RuntimeError, match="In-graph multi-worker training"):
        MirroredStrategy(remote)


def test_devices_that_are_not_configured_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no device .*CPU:4, it has .*set_logical_cpus"):
        MirroredStrategy(["CPU:0", "CPU:4"])


@pytest.mark.spec("MS-5", "MS-6")
@pytest.mark.parametrize("form", ["cpu:{}", "CPU:{}", "/cpu:{}", "/device:CPU:{}"])
def test_devices_are_named_in_full_in_the_order_given(form: str) -> None:
    strategy = MirroredStrategy([form.format(1), form.format(0), f"{CPU}2"])
    extended = strategy.extended
    assert extended.worker_devices == (f"{CPU}1", f"{CPU}0", f"{CPU}2")
    assert extended.parameter_devices == extended.worker_devices
    assert strategy.run(device_names.current).values == extended.worker_devices


@pytest.mark.spec("MS-12", "MS-13")
def test_it_says_what_it_is() -> None:
    strategy = MirroredStrategy()
    extended = strategy.extended
    assert strategy.cluster_resolver is None
    assert not extended.experimental_between_graph
    assert not extended.experimental_require_static_shapes
    assert extended.experimental_should_init
    assert extended.should_checkpoint
    assert extended.should_save_summary


@pytest.mark.spec("MS-14")
def test_a_session_isolates_its_state_and_keeps_its_filters() -> None:
    given = ConfigProto(device_filters=["/job:ps"])
    updated = MirroredStrategy().update_config_proto(given)
    assert updated.isolate_session_state
    assert list(updated.device_filters) == ["/job:ps"]
    assert not given.isolate_session_state


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


def test_both_contexts_are_those_of_any_strategy() -> None:
    strategy = MirroredStrategy(["CPU:0", "CPU:1"])
    seen: list[int] = []

    def fn(x: float) -> torch.Tensor:
        replica = stratagem.get_replica_context()
        assert replica is not None
        assert replica.strategy is strategy
        seen.append(int(replica.replica_id_in_sync_group or 0))
        return torch.tensor(x * 10)

    result = strategy.run(fn, (PerReplica([1.0, 2.0]),))
    assert seen == [0, 1]
    assert strategy.reduce("sum", result) == 30.0
    assert strategy.reduce("mean", result) == 15.0
    assert strategy.gather(PerReplica([torch.ones(1), torch.zeros(2)]), 0).tolist() == [
        1.0,
        0.0,
        0.0,
    ]
