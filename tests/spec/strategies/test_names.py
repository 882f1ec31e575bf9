"""What things are called in each version of the API, and that they are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stratagem
from stratagem import Variable, contrib
from tests.client.batches import batches, steps

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    # That old spellings warn is shown with each of them.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CPUS = ["CPU:0", "CPU:1"]


@pytest.fixture
def towers() -> contrib.DistributionStrategy:
    """Two towers, as in 1.12."""
    return contrib.MirroredStrategy(CPUS)


@pytest.fixture
def replicas() -> stratagem.Strategy:
    """Two replicas."""
    return stratagem.MirroredStrategy(CPUS)


def number() -> torch.Tensor:
    """Return the number of the running replica, as a tensor of its own."""
    replica = stratagem.get_replica_context()
    assert replica is not None
    return torch.tensor(float(replica.replica_id_in_sync_group or 0))


@pytest.mark.spec("NAM-1")
def test_strategies_have_two_base_classes(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    assert isinstance(towers, contrib.DistributionStrategy)
    assert isinstance(replicas, stratagem.Strategy)
    assert isinstance(replicas, contrib.DistributionStrategy)
    assert issubclass(stratagem.MirroredStrategy, contrib.DistributionStrategy)
    assert not isinstance(towers, stratagem.Strategy)
    assert not isinstance(object(), contrib.DistributionStrategy)


@pytest.mark.spec("NAM-2")
def test_low_level_methods_are_on_extended_or_were_on_the_strategy(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with replicas.scope():
        variable = Variable(1.0)
    assert replicas.extended.value_container(variable) is variable
    with towers.scope():
        older = Variable(1.0)
        assert towers.value_container(older) is older


@pytest.mark.spec("NAM-3")
def test_replicas_were_towers(towers: contrib.DistributionStrategy) -> None:
    with towers.scope():
        seen = towers.call_for_each_tower(
            lambda: (contrib.get_tower_context(), stratagem.get_replica_context())
        )
        tower = towers.unwrap(seen[0])[1]
        replica = towers.unwrap(seen[1])[1]
    assert isinstance(tower, contrib.TowerContext)
    assert isinstance(replica, stratagem.ReplicaContext)


@pytest.mark.spec("NAM-4")
def test_replicas_are_counted(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    assert towers.num_towers == replicas.num_replicas_in_sync == 2


@pytest.mark.spec("NAM-5")
def test_functions_are_run_on_each_replica(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        oldest = towers.unwrap(towers.call_for_each_tower(number))
    results = [
        replicas.experimental_run(number),
        replicas.experimental_run_v2(number),
        replicas.run(number),
        replicas.extended.call_for_each_replica(number),
    ]
    assert oldest == [0.0, 1.0]
    for result in results:
        assert replicas.experimental_local_results(result) == (0.0, 1.0)


@pytest.mark.spec("NAM-6")
def test_values_of_replicas_are_reduced(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        value = towers.call_for_each_tower(number)
        aggregation = contrib.VariableAggregation.SUM
        assert towers.unwrap(towers.reduce(aggregation, value, "CPU:0")) == [1.0]
    value = replicas.run(number)
    assert replicas.reduce("SUM", value) == replicas.reduce("SUM", value, axis=None)
    assert replicas.extended.reduce_to("SUM", value, "CPU:0") == 1.0


@pytest.mark.spec("NAM-7")
def test_several_values_are_reduced_at_once(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        value = towers.call_for_each_tower(number)
        aggregation = contrib.VariableAggregation.MEAN
        (oldest,) = towers.batch_reduce(aggregation, [(value, "CPU:0")])
        assert towers.unwrap(oldest) == [0.5]
    value = replicas.run(number)
    assert replicas.extended.batch_reduce_to("MEAN", [(value, "CPU:0")]) == [0.5]


@pytest.mark.spec("NAM-8")
def test_a_tensor_is_broadcast(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        assert towers.unwrap(towers.broadcast(torch.tensor(3.0))) == [3.0, 3.0]
    value = replicas.extended.broadcast_to(torch.tensor(3.0), CPUS[0])
    assert replicas.experimental_local_results(value)[0] == 3.0


@pytest.mark.spec("NAM-9")
def test_local_values_are_a_tuple_and_were_a_list(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        assert towers.unwrap(towers.call_for_each_tower(number)) == [0.0, 1.0]
    value = replicas.run(number)
    assert replicas.unwrap(value) == (0.0, 1.0)
    assert replicas.experimental_local_results(value) == (0.0, 1.0)


@pytest.mark.spec("NAM-10")
def test_several_steps_run_behind_one_call(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    seen: list[Any] = []

    def step(context: Any, value: Any) -> None:
        seen.append(type(context).__name__)

    with towers.scope():
        dataset = towers.distribute_dataset(lambda: batches(4, 1))
        towers.run_steps_on_dataset(step, dataset.make_one_shot_iterator(), 2)
    iterator = replicas.make_dataset_iterator(batches(4, 2))
    replicas.extended.experimental_run_steps_on_iterator(step, iterator, 2)
    assert seen == ["MultiStepContext"] * 4


@pytest.mark.spec("NAM-11")
def test_datasets_are_distributed(replicas: stratagem.Strategy) -> None:
    split = [[[0], [1]], [[2], [3]]]
    dataset = replicas.experimental_distribute_dataset(batches(4, 2))
    assert steps(dataset) == split
    iterator = replicas.make_dataset_iterator(batches(4, 2))
    assert replicas.unwrap(iterator.get_next())[1] == 1
    functions = [
        replicas.distribute_datasets_from_function,
        replicas.experimental_distribute_datasets_from_function,
    ]
    for distribute in functions:
        assert steps(distribute(lambda context: batches(4, 1))) == split


@pytest.mark.spec("NAM-12")
def test_a_replica_has_a_context(replicas: stratagem.Strategy) -> None:
    contexts = replicas.run(stratagem.get_replica_context).values
    assert [type(each) for each in contexts] == [stratagem.ReplicaContext] * 2
    assert all(hasattr(each, "all_gather") for each in contexts)


@pytest.mark.spec("NAM-13")
def test_contexts_are_asked_for(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    assert not contrib.has_distribution_strategy()
    with towers.scope():
        assert contrib.has_distribution_strategy()
        assert contrib.get_distribution_strategy() is towers
        assert contrib.in_cross_tower_context()
        assert contrib.get_cross_tower_context() is towers
        assert contrib.get_tower_context() is None
    with replicas.scope():
        assert stratagem.has_strategy()
        assert stratagem.get_strategy() is replicas
        assert stratagem.in_cross_replica_context()
        assert stratagem.get_replica_context() is None


@pytest.mark.spec("NAM-14")
def test_a_replica_has_a_number(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        tower_ids = towers.call_for_each_tower(lambda: _tower().tower_id)
        assert towers.unwrap(tower_ids) == [0, 1]
    numbers = replicas.run(lambda: _replica().replica_id_in_sync_group)
    assert [int(each) for each in numbers.values] == [0, 1]


def _tower() -> contrib.TowerContext:
    tower = contrib.get_tower_context()
    assert tower is not None
    return tower


def _replica() -> stratagem.ReplicaContext:
    replica = stratagem.get_replica_context()
    assert replica is not None
    return replica


@pytest.mark.spec("NAM-15")
def test_the_first_replica_was_the_first_tower() -> None:
    first = stratagem.VariableAggregation.ONLY_FIRST_REPLICA
    assert contrib.VariableAggregation.ONLY_FIRST_TOWER is first
    assert [each.name for each in contrib.VariableAggregation][-1] == first.name


@pytest.mark.spec("NAM-16")
def test_values_of_replicas_are_per_replica(replicas: stratagem.Strategy) -> None:
    assert isinstance(replicas.run(number), stratagem.PerReplica)


@pytest.mark.spec("NAM-17")
def test_variables_are_synchronized_on_read(replicas: stratagem.Strategy) -> None:
    on_read = stratagem.VariableSynchronization.ON_READ
    with replicas.scope():
        variable = Variable(1.0, synchronization=on_read)
    assert type(variable).__name__ == "SyncOnReadVariable"
    assert variable.synchronization is on_read


@pytest.mark.spec("NAM-18")
def test_there_were_hooks_around_a_program(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    assert [towers.initialize(), towers.finalize()] == [None, None]
    assert replicas.experimental_initialize() == []
    assert replicas.experimental_finalize() == []


@pytest.mark.spec("NAM-19")
def test_updates_are_grouped_unless_asked(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    with towers.scope():
        older = Variable(1.0)
        results = towers.update(older, _add, 2.0, grouped=False)
        assert [float(each) for each in results] == [3.0, 3.0]
    with replicas.scope():
        variable = Variable(1.0)
    newer = replicas.extended.update(variable, _add, (2.0,), group=False)
    assert [float(each) for each in newer] == [3.0, 3.0]


def _add(variable: Variable, amount: float) -> Any:
    return variable.assign_add(amount)


@pytest.mark.spec("NAM-20")
def test_configurations_are_changed_or_copied(
    towers: contrib.DistributionStrategy, replicas: stratagem.Strategy
) -> None:
    for configure in (towers.configure, replicas.configure):
        given = stratagem.ConfigProto()
        configure(session_config=given)
        assert given.isolate_session_state
    given = stratagem.ConfigProto()
    assert replicas.update_config_proto(given).isolate_session_state
    assert not given.isolate_session_state
