"""Shared data after a restart from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem import (
    FailedPreconditionError,
    IndexedSlices,
    ParameterServerStrategy,
    Variable,
)
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from tests.client.coordinator.coordination import coordinating
from tests.client.coordinator.here import Gate

ROWS, BATCH = 12, 2


@contextmanager
def restored(folder: Path) -> Iterator[ParameterServerStrategy]:
    """A fresh cluster that begins with a folder's checkpoint, if there is one."""
    with (
        LocalCluster(ps=2, worker_servers=1, restore=folder) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        yield strategy


def count(batches: Any, counts: Variable) -> None:
    (rows,) = next(batches)
    counts.scatter_add(IndexedSlices(torch.ones_like(rows), rows))


def run(strategy: ParameterServerStrategy, most: int) -> tuple[Variable, int]:
    """Lets so many functions count, or as many as there are batches left."""
    with strategy.scope():
        counts = Variable(torch.zeros(ROWS, dtype=torch.int64), False, name="counts")
    coordinator = ClusterCoordinator(strategy)
    loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
    batches = iter(coordinator.create_per_worker_dataset(loader, True, "rows"))
    for _ in range(min(most, batches.remaining)):
        coordinator.schedule(count, args=(batches, counts))
    coordinator.join()
    return counts, batches.pass_number


def test_servers_that_begin_with_a_checkpoint_go_on_with_its_pass(
    tmp_path: Path,
) -> None:
    with restored(tmp_path) as strategy:
        run(strategy, 2)
        strategy.save(tmp_path)
    with restored(tmp_path) as strategy:
        counts, number = run(strategy, ROWS)
        assert (counts.numpy().tolist(), number) == ([1] * ROWS, 0)


@pytest.fixture
def strategy() -> Iterator[ParameterServerStrategy]:
    """That of a coordinator, on servers that run throughout the test."""
    with (
        LocalCluster(ps=2, worker_servers=1) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        yield strategy


class Program:
    """Counts the rows that its functions read.

    Args:
        strategy: Its strategy.
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            self.counts = Variable(torch.zeros(ROWS, dtype=torch.int64), name="counts")
        self.coordinator = ClusterCoordinator(strategy)
        loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
        self.data = self.coordinator.create_per_worker_dataset(loader, True, "rows")

    def read(self, batches: Any, most: int = ROWS) -> list[int]:
        for _ in range(min(most, batches.remaining)):
            self.coordinator.schedule(count, args=(batches, self.counts))
        self.coordinator.join()
        return list(self.counts.numpy().tolist())


def test_what_was_read_since_is_read_again_after_a_restoration(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    program = Program(strategy)
    before = iter(program.data)
    program.read(before, 2)
    strategy.save(tmp_path)
    program.read(before, 3)
    for _ in range(2):
        strategy.restore(tmp_path)
        batches = iter(program.data)
        assert batches.pass_number == 0
        assert program.read(batches) == [1] * ROWS
    assert iter(program.data).pass_number == 1


def test_an_iterator_from_before_a_restoration_says_so(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    program = Program(strategy)
    before = iter(program.data)
    program.read(before, 1)
    strategy.save(tmp_path)
    strategy.restore(tmp_path)
    with pytest.raises(FailedPreconditionError, match="Make a new iterator"):
        program.read(before, 1)


def test_another_program_that_restores_reads_all_that_its_variables_lack(
    tmp_path: Path,
) -> None:
    with LocalCluster(ps=2, worker_servers=1) as cluster:
        with ParameterServerStrategy(cluster.cluster_resolver) as strategy:
            program = Program(strategy)
            batches = iter(program.data)
            program.read(batches, 2)
            strategy.save(tmp_path)
            program.read(batches, 3)
        with ParameterServerStrategy(cluster.cluster_resolver) as strategy:
            strategy.restore(tmp_path)  # of what is made later
            program = Program(strategy)
            assert program.read(iter(program.data)) == [1] * ROWS


def test_more_servers_go_on_with_the_account_of_fewer(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    program = Program(strategy)
    program.read(iter(program.data), 2)
    strategy.save(tmp_path)
    with (
        LocalCluster(ps=3, worker_servers=1) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as larger,
    ):
        larger.restore(tmp_path)
        program = Program(larger)
        assert program.read(iter(program.data)) == [1] * ROWS


def count_twice(batches: Any, counts: Variable, gate: Gate) -> None:
    (rows,) = next(batches)
    for _ in range(2):
        counts.scatter_add(IndexedSlices(torch.ones_like(rows), rows))
        counts.value()  # is written
        gate.pass_through()


def test_a_function_that_was_lost_half_way_at_the_moment_is_ended_again(
    tmp_path: Path,
) -> None:
    gate = Gate()
    with coordinating(num_workers=1) as coordination:
        program = Program(coordination.strategy)
        batches = iter(program.data)
        for _ in range(batches.remaining):
            args = (batches, program.counts, gate)
            program.coordinator.schedule(count_twice, args=args)
        gate.wait_for()
        coordination.stop(0)
        coordination.strategy.save(tmp_path)
        assert program.counts.numpy().sum() == BATCH
        gate.open()
        coordination.start(0)
        program.coordinator.join()
        assert program.counts.numpy().tolist() == [2] * ROWS
        coordination.strategy.restore(tmp_path)
        batches = iter(program.data)
        assert batches.remaining == ROWS // BATCH
        for _ in range(batches.remaining):
            args = (batches, program.counts, gate)
            program.coordinator.schedule(count_twice, args=args)
        program.coordinator.join()
        assert program.counts.numpy().tolist() == [2] * ROWS
