"""Writing variables that are in shards on several servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.clusters import running


@pytest.fixture
def strategy() -> Iterator[ParameterServerStrategy]:
    partitioner = FixedShardsPartitioner(5)
    with (
        running(3) as cluster,
        cluster.strategy(variable_partitioner=partitioner) as strategy,
    ):
        yield strategy


def steps_of(strategy: ParameterServerStrategy) -> int:
    assert isinstance(strategy.extended, ParameterServerExtended)
    return strategy.extended._store.servers.steps.finished_step().step


def test_all_shards_are_written_in_one_step(strategy: ParameterServerStrategy) -> None:
    """So that a checkpoint has all of a write or nothing."""
    with strategy.scope():
        rows = Variable(torch.zeros(10, 2), name="rows")
    before = steps_of(strategy)
    rows.assign(torch.ones(10, 2))
    assert steps_of(strategy) == before + 1
    delta = IndexedSlices(torch.ones(3, 2), torch.tensor([9, 0, 9]))
    rows.scatter_add(delta)
    assert steps_of(strategy) == before + 2
    expected = torch.ones(10, 2).index_add_(0, delta.indices, delta.values)
    assert torch.equal(torch.from_numpy(rows.numpy()), expected)


def test_a_replica_writes_all_shards(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        rows = Variable(torch.zeros(10, 2), name="rows")
    strategy.run(lambda: rows.assign_add(torch.ones(10, 2)))
    assert rows.numpy().sum() == 20.0
