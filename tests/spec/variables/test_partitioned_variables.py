"""Variables that a strategy divides into shards on parameter servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional

import stratagem
from stratagem import (
    DistributedOptimizer,
    IndexedSlices,
    ShardedVariable,
    Variable,
    VariableAggregation,
    config,
    partitioners,
)
from tests.client.clusters import Cluster, running, tasks_of

TWO = partitioners.FixedShardsPartitioner(2)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(num_servers=2) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: Cluster) -> Iterator[stratagem.ParameterServerStrategy]:
    with cluster.strategy(variable_partitioner=TWO) as strategy:
        yield strategy


class Call(NamedTuple):
    """What a partitioner was asked."""

    shape: Any
    dtype: Any


def asked_of(answer: Any) -> tuple[list[Call], Callable[..., Any]]:
    """A partitioner that gives an answer, and what it was asked."""
    calls: list[Call] = []

    def partitioner(**kwargs: Any) -> Any:
        calls.append(Call(**kwargs))
        return answer

    return calls, partitioner


@contextmanager
def dividing(cluster: Cluster, partitioner: Any) -> Iterator[None]:
    """The scope of a strategy with a partitioner."""
    strategy = cluster.strategy(variable_partitioner=partitioner)
    with strategy, strategy.scope():
        yield


@pytest.mark.spec("PRT-1", "PRT-4")
def test_a_partitioner_is_asked_about_all_but_scalars(cluster: Cluster) -> None:
    calls, partitioner = asked_of([2, 1])
    with dividing(cluster, partitioner):
        scalar = Variable(1.0)
        table = Variable(torch.zeros(5, 3, dtype=torch.float64))
    assert calls == [Call(torch.Size((5, 3)), torch.float64)]
    assert isinstance(scalar, Variable)
    assert isinstance(table, ShardedVariable)


@pytest.mark.spec("PRT-7")
def test_shards_have_the_name_of_the_whole_and_a_number(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        tables: list[Any] = [
            Variable(torch.zeros(4), name="users"),
            Variable(torch.zeros(4), name="users"),
            Variable(torch.zeros(4)),
        ]
    names = ["users", "users_1", "Variable"]
    assert [table.name for table in tables] == names
    assert [[shard.name for shard in table] for table in tables] == [
        [f"{name}/part_0", f"{name}/part_1"] for name in names
    ]


@pytest.mark.spec("PRT-8", "PSV-1", "PS1-11")
def test_shards_take_their_turns(strategy: stratagem.ParameterServerStrategy) -> None:
    with strategy.scope():
        first = Variable(1.0)
        table = Variable(torch.zeros(4, 2))
        last = Variable(1.0)
    assert tasks_of([first, *table, last]) == ["task:0", "task:1", "task:0", "task:1"]


SHAPE: dict[str, Any] = {"shape": (5, 2), "dtype": torch.float32}
WHOLE = torch.arange(10.0).reshape(5, 2)


@pytest.mark.spec("PRT-10")
def test_a_function_without_arguments_makes_the_whole_once(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    made = []

    def make() -> torch.Tensor:
        made.append(WHOLE)
        return WHOLE

    with strategy.scope():
        table: Any = Variable(make, **SHAPE)
    assert table.numpy().tolist() == WHOLE.tolist()
    assert len(made) == 1


@pytest.mark.spec("PRT-10")
def test_a_function_without_arguments_may_make_shards(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    values = iter([WHOLE[:3], WHOLE[3:]])
    with strategy.scope():
        table: Any = Variable(lambda: next(values), **SHAPE)
        with pytest.raises(ValueError, match="shape"):
            Variable(lambda: WHOLE[:4], **SHAPE)
    assert table.numpy().tolist() == WHOLE.tolist()


@pytest.mark.spec("PRT-11")
@pytest.mark.parametrize("given", [{}, {"shape": (5, 2)}, {"dtype": torch.float64}])
def test_without_shape_or_dtype_a_function_makes_the_whole(
    strategy: stratagem.ParameterServerStrategy, given: dict[str, Any]
) -> None:
    made = []

    def make(**shard: Any) -> torch.Tensor:
        made.append(shard)
        return WHOLE

    with strategy.scope():
        table: Any = Variable(make, **given)
    assert table.numpy().tolist() == WHOLE.tolist()
    assert table.dtype == given.get("dtype", torch.float32)
    assert made == [{}]


@pytest.mark.spec("PRT-12")
def test_a_large_value_is_warned_of(
    strategy: stratagem.ParameterServerStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    with strategy.scope(), caplog.at_level(logging.WARNING, "stratagem"):
        Variable(torch.zeros(10_000_001, dtype=torch.bool), trainable=False)
    assert "shard_info" in caplog.text


@pytest.mark.spec("PRT-13")
def test_a_replica_creates_shards_once(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    tables: list[Any] = []

    def replica() -> Any:
        if not tables:
            tables.append(Variable(WHOLE))
        return tables[0].read_value().sum().detach()

    assert [float(strategy.run(replica)) for _ in range(2)] == [45.0, 45.0]
    assert isinstance(tables[0], ShardedVariable)


@pytest.mark.spec("SHV-1")
def test_a_shard_belongs_to_one_variable(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table: Any = Variable(WHOLE, name="table")
    with pytest.raises(ValueError, match="is a shard of 'table' already"):
        stratagem.ShardedVariable(table.variables)


@pytest.mark.spec("SHV-4")
def test_a_divided_variable_has_its_name(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = Variable(WHOLE, name="table")
    assert table.name == "table"


@pytest.mark.spec("SHV-6", "SHV-10", "SHV-11")
def test_servers_write_and_read_the_rows_of_their_shards(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table: Any = Variable(WHOLE, name="table")
    table.assign_add(torch.ones(5, 2))
    table.scatter_sub(IndexedSlices(torch.ones(2, 2), torch.tensor([4, 0])))
    with torch.no_grad():
        rows = table.sparse_read([4, 1, 0])
    assert rows.tolist() == [WHOLE[4].tolist(), (WHOLE[1] + 1).tolist(), [0, 1]]
    assert torch.equal(table[::-2], table.read_value()[[4, 2, 0]])


@pytest.mark.spec("SHV-12")
def test_only_the_rows_looked_up_are_fetched(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table: Any = Variable(WHOLE)
    before = [shard.value() for shard in table.variables]
    table.assign_add(torch.ones(5, 2))
    with torch.no_grad():
        found = functional.embedding(torch.tensor([4, 0]), table)
    assert found.tolist() == (WHOLE[[4, 0]] + 1).tolist()
    assert torch.equal(torch.cat(before), WHOLE)
    assert torch.equal(table.read_value(), WHOLE + 1)


@pytest.mark.spec("SHV-14", "SHV-15")
def test_a_replica_trains_the_shards_of_what_it_is_given(
    strategy: stratagem.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table: Any = Variable(WHOLE, name="table")
    leaves = [shard.value() for shard in table.variables]
    optimizer = DistributedOptimizer(torch.optim.SGD(leaves, lr=1.0))

    def replica(given: Any, ids: torch.Tensor) -> bool:
        optimizer.zero_grad()
        functional.embedding(ids, given).sum().backward()
        optimizer.step()
        return given is table

    assert strategy.run(replica, args=(table, torch.tensor([4, 4, 0])))
    expected = WHOLE - torch.tensor([[1.0], [0], [0], [0], [2]])
    assert torch.equal(table.read_value(), expected)


@pytest.mark.spec("SHV-16", "PSV-6")
def test_what_replicas_assign_is_aggregated_shard_by_shard(cluster: Cluster) -> None:
    config.set_logical_cpus(2)
    with cluster.strategy(variable_partitioner=TWO, num_replicas_per_worker=2) as strategy:
        with strategy.scope():
            table: Any = Variable(WHOLE, aggregation=VariableAggregation.SUM)
            whole = Variable(1.0, aggregation=VariableAggregation.SUM)

        def replica() -> None:
            context = stratagem.get_replica_context()
            assert context is not None
            number = 1.0 + float(context.replica_id_in_sync_group or 0)
            table.assign(torch.full((5, 2), number))
            whole.assign(number)

        strategy.run(replica)
        assert torch.equal(table.read_value(), torch.full((5, 2), 3.0))
        assert float(whole) == 3.0
        kinds = {type(one).__name__ for one in (whole, *table)}
        assert kinds == {"AggregatingVariable"}
