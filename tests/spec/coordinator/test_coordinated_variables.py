"""The variables of a program that schedules functions on workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import stratagem
from stratagem import DistributedOptimizer, Variable
from stratagem._coordinator.per_worker import PerWorkerVariable
from stratagem._core.distributed_variables import AggregatingVariable
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem.coordinator import (
    ClusterCoordinator,
    experimental_get_current_worker_index,
)
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.spec.coordinator.each_worker import on_each_worker


def per_worker(coordination: Coordination, initial: Any) -> Any:
    with coordination.strategy.scope():
        return Variable(initial, dtype=torch.float64, per_worker_variable=True)


@pytest.mark.spec("VAR-6")
def test_a_coordinators_strategy_makes_variables_of_servers_and_of_workers(
    coordination: Coordination, four_cpus: None
) -> None:
    with coordination.strategy.scope():
        one = Variable(1.0, name="one")
        own = Variable(1.0, name="own", per_worker_variable=True)
    with coordination.new_strategy(
        variable_partitioner=FixedShardsPartitioner(2), num_replicas_per_worker=2
    ) as other:
        ClusterCoordinator(other)
        with other.scope():
            shared = Variable(1.0, name="shared")
            table = Variable(torch.zeros(4), name="table")
    assert [type(each) for each in (one, shared, own)] == [
        RemoteVariable,
        AggregatingVariable,
        PerWorkerVariable,
    ]
    assert all(isinstance(each, Variable) for each in (one, shared, own))
    assert isinstance(table, stratagem.ShardedVariable)


def read_thrice(variable: Any) -> list[float]:
    """Before and after a write in the scope, and after the scope."""
    with stratagem.experimental.cache_variable_reads():
        before = variable.read_value().item()
        variable.assign_add(4.0)
        after = (variable + 0).item()
    return [before, after, variable.read_value().item()]


@pytest.mark.spec("PSV-11")
def test_reads_can_be_cached(coordination: Coordination) -> None:
    with coordination.strategy.scope():
        variable = Variable(1.0)
    assert read_thrice(variable) == [1, 1, 5]
    scheduled = coordination.coordinator.schedule(read_thrice, args=(variable,))
    assert scheduled.get() == [5, 5, 9]


@pytest.mark.spec("PSV-11")
def test_replicas_read_what_is_cached(coordination: Coordination) -> None:
    strategy = coordination.strategy
    with strategy.scope():
        cached, fresh = Variable(1.0), Variable(1.0)
    with stratagem.experimental.cache_variable_reads():
        cached.read_value()
        for variable in cached, fresh:
            variable.assign(2.0)
        assert strategy.run(lambda: [cached.item(), fresh.item()]) == [1, 2]
    assert strategy.run(cached.item) == 2


@pytest.mark.spec("PSV-11")
def test_reads_are_cached_by_one_scope() -> None:
    caching = stratagem.experimental.cache_variable_reads
    with caching(), pytest.raises(ValueError, match="cannot be nested"):
        caching().__enter__()
    with caching():
        pass


@pytest.mark.spec("PSV-12")
def test_each_worker_has_a_variable(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    variable = per_worker(coordination, 0.0)
    for _ in range(7):
        coordinator.schedule(lambda: variable.assign_add(1.0))
    coordinator.join()
    values = variable.read_all()
    assert len(values) == 2
    assert sum(values) == 7
    assert variable.numpy() == 0
    devices = on_each_worker(coordinator, lambda: variable.device_name)
    assert sorted(devices) == [
        f"/job:worker/replica:0/task:{worker}/device:CPU:0" for worker in range(2)
    ]


@pytest.mark.spec("PSV-12")
def test_workers_may_initialise_their_variables_by_their_index(
    coordination: Coordination,
) -> None:
    def initial() -> torch.Tensor:
        return torch.full((2,), float(experimental_get_current_worker_index()))

    variable = per_worker(coordination, initial)
    assert [value.tolist() for value in variable.read_all()] == [[0, 0], [1, 1]]
    assert (variable.dtype, variable.shape, variable.trainable) == (
        torch.float64,
        (2,),
        False,
    )


@pytest.mark.spec("PSV-12")
def test_a_worker_that_comes_back_begins_with_the_initial_value() -> None:
    with coordinating(num_workers=1) as coordination:
        variable = per_worker(coordination, 3.0)
        coordinator = coordination.coordinator
        add = variable.assign_add
        assert coordinator.schedule(lambda: add(1.0).read_value()).fetch() == 4
        coordination.stop(0)
        coordination.start(0)
        assert coordinator.schedule(variable.read_value).fetch() == 3
        assert variable.read_all() == [3]


@pytest.mark.spec("PSV-12")
def test_workers_that_cannot_make_their_variable_say_why(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    def initial() -> float:
        return [1.0][experimental_get_current_worker_index()]

    variable = per_worker(coordination, initial)
    with pytest.raises(IndexError, match="list index out of range"):
        variable.read_all()
    assert coordinator.schedule(lambda: 1).fetch() == 1


@pytest.mark.spec("PSV-12")
def test_variables_of_workers_need_a_coordinator(coordination: Coordination) -> None:
    with (
        coordination.new_strategy() as strategy,
        strategy.scope(),
        pytest.raises(ValueError, match="construct a ClusterCoordinator"),
    ):
        Variable(0.0, per_worker_variable=True)
    assert Variable(2.0, per_worker_variable=True).numpy() == 2


@pytest.mark.spec("PSV-13")
def test_the_first_steps_of_all_workers_create_the_optimizers_variables_once(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    strategy = coordination.strategy
    with strategy.scope():
        model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = DistributedOptimizer(inner)

    def replica_step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2)).sum().backward()
        optimizer.step()

    on_each_worker(coordinator, lambda: strategy.run(replica_step))
    placed = strategy.extended.variable_placements()
    slots = Counter(one.name for one in placed if "momentum_buffer" in one.name)
    assert sorted(slots.items()) == [
        (f"{name}/{optimizer.name}/momentum_buffer", 1) for name in ("bias", "weight")
    ]


@pytest.mark.spec("PSV-13")
def test_functions_make_no_other_variables(
    coordination: Coordination, coordinator: ClusterCoordinator
) -> None:
    strategy = coordination.strategy

    def make() -> None:
        with strategy.scope():
            Variable(1.0, name="made")

    coordinator.schedule(make)
    with pytest.raises(ValueError, match="each call would make another one"):
        coordinator.join()
