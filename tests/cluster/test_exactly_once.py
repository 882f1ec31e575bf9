"""Worker processes that are killed or stopped, and counts that stay exact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from stratagem import (
    DistributedOptimizer,
    FailedPreconditionError,
    ParameterServerStrategy,
    Variable,
)
from stratagem.coordinator import (
    ClusterCoordinator,
    experimental_get_current_worker_index,
)
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_deploy import LocalCluster
from tests.stopping import stopped
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.spec("COO-8")]

WORKERS = 3
KILLS = 4
FUNCTIONS = 10  # for each kill
STEP_SECONDS = 0.1
ROWS = 6
LEASE_SECONDS = 5.0


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        ps=2, worker_servers=WORKERS, processes=True, lease_seconds=LEASE_SECONDS
    ) as cluster:
        yield cluster


@pytest.fixture
def strategy(cluster: LocalCluster) -> Iterator[ParameterServerStrategy]:
    partitioner = FixedShardsPartitioner(2)
    resolver = cluster.cluster_resolver
    with ParameterServerStrategy(resolver, variable_partitioner=partitioner) as strategy:
        yield strategy


class Counts:
    """Counters on each of two servers, and a table of which each has a part."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            self.here = Variable(0.0, name="here")
            self.there = Variable(0.0, name="there")
            self.table = nn.Embedding(ROWS, 1, sparse=True)
            nn.init.zeros_(self.table.weight)

    def are(self, number: int) -> bool:
        """Whether all of them have counted that far."""
        counters = [float(one.numpy()) for one in (self.here, self.there)]
        rows = self.table.weight.detach().flatten().tolist()
        return counters == [number, number] and rows == [-2.0 * number] * ROWS


def counting(
    strategy: ParameterServerStrategy, counts: Counts, started: Path
) -> Callable[[], None]:
    """A function that counts in four steps, and first notes which worker runs it."""
    here, there, table = counts.here, counts.there, counts.table
    optimizer = DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))

    def step() -> None:
        optimizer.zero_grad()
        table(torch.arange(ROWS)).sum().backward()
        optimizer.step()

    def count() -> None:
        with started.open("a") as marks:
            marks.write(str(experimental_get_current_worker_index()))
        here.assign_add(1.0)
        time.sleep(STEP_SECONDS)
        strategy.run(step)
        time.sleep(STEP_SECONDS)
        there.assign_add(1.0)
        time.sleep(STEP_SECONDS)
        strategy.run(step)

    return count


def begun_after(started: Path, before: int) -> int:
    """Waits until one more function has begun; returns the worker that runs it."""
    eventually(lambda: len(started.read_text()) > before)
    return int(started.read_text()[-1])


def test_counts_are_exact_however_often_workers_are_killed(
    cluster: LocalCluster, strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    started.touch()
    coordinator, counts = ClusterCoordinator(strategy), Counts(strategy)
    count = counting(strategy, counts, started)
    for _ in range(KILLS):
        before = len(started.read_text())
        for _ in range(FUNCTIONS):
            coordinator.schedule(count)
        # A function takes much longer than to find that it has begun.
        worker = begun_after(started, before)
        cluster.kill("worker", worker)
        cluster.restart("worker", worker)
    coordinator.join()
    assert len(started.read_text()) > FUNCTIONS * KILLS
    assert counts.are(FUNCTIONS * KILLS)


def test_a_worker_that_was_thought_lost_and_goes_on_changes_nothing(
    cluster: LocalCluster, strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    process, over = tmp_path / "pid", tmp_path / "over"
    coordinator, counts = ClusterCoordinator(strategy), Counts(strategy)
    here, there = counts.here, counts.there

    def count() -> None:
        here.assign_add(1.0)
        if process.exists():
            there.assign_add(1.0)
            return
        process.write_text(str(os.getpid()))
        # Until it is given up, which would end other functions.
        with suppress(BaseException):
            while True:
                time.sleep(0.01)
        # By then the other one has ended, whether servers know that yet or not.
        with suppress(FailedPreconditionError):
            there.assign_add(1.0)
        over.touch()

    value = coordinator.schedule(count)
    eventually(lambda: process.exists() and process.read_text() != "")
    with stopped(int(process.read_text())):
        value.fetch()
    eventually(over.exists)
    assert [float(one.numpy()) for one in (here, there)] == [1, 1]
