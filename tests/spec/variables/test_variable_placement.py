"""Where variables on parameter servers live, and who writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stratagem
from stratagem import Variable, VariableAggregation, partitioners
from tests.client.clusters import Cluster, running, tasks_of


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=2) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: Cluster) -> Iterator[stratagem.ParameterServerStrategy]:
    two = partitioners.FixedShardsPartitioner(2)
    with cluster.strategy(variable_partitioner=two) as strategy:
        yield strategy


@pytest.mark.spec("PSV-8")
def test_a_colocated_variable_is_not_divided(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table: Any = Variable(torch.zeros(4, 2))
        with strategy.extended.colocate_vars_with(table.variables[1]):
            slot = Variable(torch.zeros(4, 2))
        with pytest.raises(ValueError, match="must be passed one of the `variables`"):
            strategy.extended.colocate_vars_with(table)
        last = Variable(1.0)
    assert isinstance(slot, Variable)
    assert tasks_of([slot, last]) == ["task:1", "task:0"]


@pytest.mark.spec("PSV-5", "PSV-7")
def test_with_one_replica_there_is_no_aggregation(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        variable: Any = Variable(1.0, aggregation=VariableAggregation.SUM)

    strategy.run(lambda: variable.assign_add(2.0))
    assert isinstance(variable, Variable)
    assert type(variable).__name__ == "RemoteVariable"
    assert float(variable) == 3.0


@pytest.mark.spec("PSV-9", "PSV-10")
def test_concurrent_writes_are_each_carried_out_as_a_whole() -> None:
    def program(strategy: stratagem.ParameterServerStrategy, worker: int) -> float:
        with strategy.scope():
            total = Variable(torch.zeros(1000))
        for _ in range(20):
            total.assign_add(torch.ones(1000))
        strategy.barrier()
        return float(total.read_value().detach().unique())

    with running(num_servers=1, num_workers=2) as cluster:
        assert cluster.run(program) == [40.0, 40.0]


@pytest.mark.spec("PSV-1")
def test_bytes_can_be_balanced(cluster: Cluster) -> None:
    with cluster.strategy(placement="balanced") as strategy:
        with strategy.scope():
            variables = [Variable(torch.zeros(size)) for size in (90, 40, 40, 20)]
        model_servers = tasks_of(variables)
    assert model_servers == ["task:0", "task:1", "task:1", "task:1"]
