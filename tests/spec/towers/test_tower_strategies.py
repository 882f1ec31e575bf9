"""The strategies of TensorFlow 1.12, as they were constructed then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem import ConfigProto, PerReplica, Variable, VariableAggregation, contrib

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CPU = "/job:localhost/replica:0/task:0/device:CPU:"
SUM, MEAN = VariableAggregation.SUM, VariableAggregation.MEAN
FIRST = VariableAggregation.ONLY_FIRST_TOWER


def mirrored() -> contrib.MirroredStrategy:
    return contrib.MirroredStrategy(["CPU:0", "CPU:1"])


def one_device() -> contrib.OneDeviceStrategy:
    return contrib.OneDeviceStrategy("CPU:0", prefetch_on_device=False)


def default() -> contrib.DistributionStrategy:
    return contrib.get_distribution_strategy()


@pytest.mark.spec("OD-5", "MS-9")
@pytest.mark.parametrize("build", [mirrored, one_device])
def test_what_is_mapped_is_reduced_over_all_elements(build: Any) -> None:
    strategy = build()
    with strategy.scope():
        doubled = strategy.map(range(10), lambda x, y: torch.tensor(x * y), 2)
        assert strategy.reduce(SUM, doubled, "CPU:0").item() == 90
        assert strategy.reduce(MEAN, doubled, "CPU:0").item() == 9


@pytest.mark.spec("OD-5")
def test_one_device_maps_all_elements() -> None:
    strategy = one_device()
    with strategy.scope():
        output = strategy.map([1, 2], lambda x: x + 1)
        assert isinstance(output, contrib.MapOutput)
        assert output.get() == [2, 3]
        for value in (7, "text", {"a": 1}):
            assert strategy.reduce(SUM, value, "CPU:0") == value
        with pytest.raises(ValueError, match="names no reduction"):
            strategy.reduce(FIRST, output, "CPU:0")
        with pytest.raises(ValueError, match="no elements"):
            strategy.reduce(SUM, strategy.map([], print), "CPU:0")


@pytest.mark.spec("MS-9")
def test_elements_that_are_mapped_go_to_the_devices_in_turn() -> None:
    strategy = mirrored()
    with strategy.scope():
        everywhere = strategy.map(range(3), lambda x, y: x * y, 2)
        assert isinstance(everywhere, PerReplica)
        assert [output.get() for output in everywhere.values] == [[0, 4], [2]]


@pytest.mark.spec("OD-6")
def test_one_device_broadcasts_where_it_is_told() -> None:
    strategy = one_device()
    tensor = torch.ones(2)
    with strategy.scope():
        assert strategy.broadcast(tensor) is tensor
        found = strategy.broadcast(tensor, ["CPU:1", "CPU:2"])
        assert [each.tolist() for each in strategy.unwrap(found)] == [[1, 1]] * 2


@pytest.mark.spec("OD-7")
def test_the_only_device_has_the_index_0() -> None:
    strategy = one_device()
    with strategy.scope():
        assert strategy.worker_device_index == 0
    assert strategy.worker_devices == strategy.non_slot_devices([]) == [f"{CPU}0"]


@pytest.mark.spec("MS-7")
def test_mirrored_devices_are_given_in_one_way() -> None:
    with pytest.raises(ValueError, match="`num_gpus` and `num_gpus_per_worker`"):
        contrib.MirroredStrategy(num_gpus=1, num_gpus_per_worker=1)
    with pytest.raises(ValueError, match="one of `devices` and `num_gpus`"):
        contrib.MirroredStrategy(["CPU:0"], num_gpus=1)
    with pytest.raises(ValueError, match="at least one device"):
        contrib.MirroredStrategy([])
    with pytest.raises(ValueError, match="No duplicates allowed"):
        contrib.MirroredStrategy(["CPU:0", "CPU:0"])
    assert contrib.MirroredStrategy(num_gpus=0).worker_devices == [f"{CPU}0"]
    assert contrib.MirroredStrategy(num_gpus_per_worker=0).num_towers == 1
    ops = stratagem.ReductionToOneDevice()
    assert contrib.MirroredStrategy(["CPU:1"], cross_tower_ops=ops).num_towers == 1


@pytest.mark.spec("MS-8")
def test_configuring_changes_the_session_but_brings_no_other_workers() -> None:
    config = ConfigProto(device_filters=["/job:worker"])
    mirrored().configure(config)
    assert config.isolate_session_state
    assert list(config.device_filters) == ["/job:worker"]
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    with pytest.raises(ValueError, match="`num_gpus` has to be given"):
        mirrored().configure(cluster_spec=cluster)
    with pytest.raises(NotImplementedError, match="In-graph multi-worker training on"):
        contrib.MirroredStrategy(num_gpus=0).configure(cluster_spec=cluster)


@pytest.mark.spec("MS-10")
def test_every_tower_sees_the_index_of_its_device() -> None:
    strategy = mirrored()
    with strategy.scope():
        index = strategy.worker_device_index
        assert isinstance(index, PerReplica)
        seen = strategy.call_for_each_tower(lambda number: number, index)
        assert strategy.unwrap(seen) == [0, 1]
    assert not strategy.is_single_tower


@pytest.mark.spec("MS-11")
def test_mirrored_values_are_not_reduced_and_the_first_can_be_chosen() -> None:
    strategy = mirrored()
    with strategy.scope():
        value = PerReplica([torch.tensor(3.0), torch.tensor(8.0)])
        first = strategy.reduce(FIRST, value, ["CPU:0", "CPU:1"])
        assert [part.item() for part in first.values] == [3, 3]
        assert strategy.reduce(FIRST, PerReplica([3, 8]), "CPU:0") == 3
        with pytest.raises(ValueError, match="nothing to reduce"):
            strategy.reduce(SUM, strategy.broadcast(torch.ones(1)), "CPU:0")


@pytest.mark.spec("DEF-12")
def test_the_default_strategy_has_a_scope_of_its_own() -> None:
    strategy = default()
    calls: list[Callable[[], Any]] = [
        lambda: strategy.call_for_each_tower(lambda x: x + 1, 2),
        lambda: strategy.reduce(SUM, 3, "CPU:0"),
        lambda: strategy.update(Variable(1.0), lambda v, x: x, 3),
        lambda: strategy.broadcast(3),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="cross-tower context"):
            call()
    with strategy.scope():
        assert contrib.in_cross_tower_context()
        assert not contrib.has_distribution_strategy()
        assert contrib.get_cross_tower_context() is strategy
        assert [call() for call in calls] == [3, 3, 3, 3]
    assert not contrib.in_cross_tower_context()


@pytest.mark.spec("DEF-12")
def test_the_default_strategy_can_do_less() -> None:
    strategy = default()
    with strategy.scope():
        v = Variable(1.0)
        with strategy.colocate_vars_with(v):
            assert Variable(2.0).device == v.device
        with pytest.raises(NotImplementedError, match="must be implemented in desc"):
            strategy.broadcast(torch.ones(1), "CPU:0")
        with pytest.raises(RuntimeError, match="unsupported"):
            _ = strategy.worker_device_index
    assert strategy.distribute_dataset(lambda: [1, 2]) == [1, 2]


@pytest.mark.spec("REP-11", "TWR-3")
def test_a_merge_call_outside_of_scopes_is_between_towers() -> None:
    tower = contrib.get_tower_context()
    assert tower is not None

    def merge(strategy: contrib.DistributionStrategy, x: int) -> Any:
        assert contrib.in_cross_tower_context()
        return strategy.reduce(SUM, x, "CPU:0")

    assert tower.merge_call(merge, 5) == 5
    assert (tower.tower_id, tower.num_towers, tower.is_single_tower) == (0, 1, True)


def test_parameter_servers_are_configured_after_construction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    strategy = contrib.ParameterServerStrategy(num_gpus_per_worker=2)
    assert (strategy.num_towers, strategy.between_graph) == (2, True)
    with strategy.scope():
        v = Variable(1.0, aggregation=SUM)
        strategy.call_for_each_tower(lambda: v.assign_add(torch.tensor(1.0)))
    assert v.read_value().item() == 3
    config = ConfigProto()
    strategy.configure(config)
    assert config == ConfigProto()
    cluster = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    strategy.configure(config, cluster, "worker", 1)
    assert strategy.parameter_devices == ["/job:ps/task:0"]
    strategy.configure(cluster_spec={"worker": ["x:1"], "ps": ["y:1", "z:1"]})
    assert strategy.parameter_devices == ["/job:ps/task:0"]


@pytest.mark.parametrize("build", [mirrored, one_device])
def test_a_program_of_then_may_use_what_is_there_today(build: Any) -> None:
    strategy = build()
    with strategy.scope():
        model = torch.nn.Linear(1, 1)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(batch: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with strategy.scope():
        losses = [
            strategy.reduce(MEAN, strategy.call_for_each_tower(step, batch), "CPU:0")
            for batch in [torch.ones(2, 1)] * 5
        ]
    assert losses[-1] < losses[0]
