"""Reading one version of all variables while workers train."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import stratagem
from stratagem import (
    ClusterSpec,
    DistributedOptimizer,
    ParameterServerStrategy,
    Variable,
)
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.consistency import Bounded, Sync
from stratagem_proto.errors import (
    FailedPreconditionError,
    VariableNotFoundError,
)
from tests.client.checkpoints.counters import SERVERS, count_until, counters
from tests.client.clusters import Cluster, running
from tests.client.networks import loss_of, network, training_step
from tests.conftest import TOKEN
from tests.full import a_few
from tests.waiting import eventually

FULL = pytest.mark.full("each kind of table and of rows stands in another case")
SNAPSHOTS = 10
WORKERS = 2


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(2) as cluster:
        yield cluster


def evaluator(cluster: Cluster, **settings: Any) -> ParameterServerStrategy:
    """The evaluator's strategy; close it at the end."""
    resolver = SimpleClusterResolver(cluster.spec, task_type="evaluator", task_id=0)
    return ParameterServerStrategy(resolver, token=TOKEN, **settings)


def values(counters: list[list[Variable]]) -> list[list[float]]:
    return [[counter.numpy().item() for counter in row] for row in counters]


def look(cluster: Cluster) -> list[list[list[float]]]:
    """Takes snapshots, each of which has to stay as it is."""
    found = []
    with evaluator(cluster) as strategy:
        seen = counters(strategy, WORKERS)
        for _ in range(SNAPSHOTS):
            with strategy.snapshot():
                found.append(values(seen))
                strategy.run(lambda: None)
                assert values(seen) == found[-1]
            eventually(lambda: values(seen) != found[-1])
    return found


@pytest.mark.full("steps in snapshots are counted as in checkpoints")
def test_a_snapshot_has_the_same_steps_of_a_worker_on_all_servers() -> None:
    """While two workers train, who do not change what it has."""
    over = threading.Event()

    def program(strategy: ParameterServerStrategy, worker: int) -> int:
        mine = counters(strategy, WORKERS)[worker]
        return count_until(over, strategy, mine)

    with running(SERVERS, WORKERS) as cluster, ThreadPoolExecutor(1) as threads:
        training = threads.submit(cluster.run, program)
        try:
            found = look(cluster)
        finally:
            over.set()
        steps = training.result()
    for counts in (counts for snapshot in found for counts in snapshot):
        assert len(set(counts)) == 1
    for worker, most in enumerate(steps):
        history = [snapshot[worker][0] for snapshot in found]
        assert history == sorted(history)
        assert history[0] < history[-1] <= most


def test_a_model_and_its_optimizer_are_evaluated_as_they_were(
    cluster: Cluster,
) -> None:
    with cluster.strategy() as trainer, evaluator(cluster) as strategy:
        with trainer.scope():
            trained = network(3)
        sgd = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
        optimizer = DistributedOptimizer(sgd)
        step = training_step(trained, optimizer)
        trainer.run(step)
        with strategy.scope():
            seen = network(3)
        theirs = DistributedOptimizer(torch.optim.SGD(seen.parameters(), lr=0.1, momentum=0.9))
        with strategy.snapshot():
            before, state = loss_of(seen), theirs.state_dict()
            trainer.run(step)
            assert torch.equal(strategy.run(lambda: loss_of(seen)), before)
            for key, value in theirs.state_dict()["state"].items():
                then = state["state"][key]["momentum_buffer"]
                assert torch.equal(value["momentum_buffer"], then)
                now = optimizer.state_dict()["state"][key]["momentum_buffer"]
                assert not torch.equal(now, then)
        assert strategy.run(lambda: loss_of(seen)) < before


def test_nothing_is_written_with_a_snapshot(cluster: Cluster) -> None:
    with cluster.strategy() as strategy:
        with strategy.scope():
            module, number = network(1), Variable(1.0, name="number")
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))
        with strategy.snapshot():
            with pytest.raises(FailedPreconditionError, match="leave"):
                number.assign(2.0)
            with pytest.raises(FailedPreconditionError, match="leave"):
                strategy.run(training_step(module, optimizer))
            refused = pytest.raises(FailedPreconditionError, match="already")
            with refused, strategy.snapshot():
                pass
            assert number.numpy() == 1.0
        number.assign(2.0)
        assert number.numpy() == 2.0


def test_a_snapshot_lacks_what_is_created_later(cluster: Cluster) -> None:
    with cluster.strategy() as trainer, evaluator(cluster) as strategy:
        with trainer.scope():
            Variable(1.0, name="early")
        with strategy.scope():
            Variable(1.0, name="early")
        with strategy.snapshot():
            with trainer.scope():
                Variable(2.0, name="late")
            with strategy.scope(), pytest.raises(VariableNotFoundError, match="late"):
                Variable(2.0, name="late")


@a_few(
    "dynamic,row_dtype",
    [
        (False, None),
        (True, torch.bfloat16),
        pytest.param(False, torch.bfloat16, marks=FULL),
        pytest.param(True, None, marks=FULL),
    ],
    "a table is read in one way whatever its rows",
)
def test_tables_are_read_as_they_were(
    cluster: Cluster, dynamic: bool, row_dtype: torch.dtype | None
) -> None:
    """Rows that were stored then, or later, or never."""

    def table(strategy: ParameterServerStrategy) -> torch.nn.Module:
        with strategy.scope(meta_above=0):
            if dynamic:
                return stratagem.nn.DynamicEmbedding(2, max_idle=4, row_dtype=row_dtype)
            return stratagem.nn.Embedding(100_000, 2, row_dtype=row_dtype)

    with cluster.strategy() as trainer, evaluator(cluster) as strategy:
        trained, seen = table(trainer), table(strategy)
        adagrad = torch.optim.Adagrad(trained.parameters(), lr=0.1)
        optimizer = DistributedOptimizer(adagrad)

        def step(rows: torch.Tensor) -> None:
            optimizer.zero_grad()
            trained(rows).square().sum().backward()
            optimizer.step()

        rows = torch.tensor([3, 500, 70_000, 9])
        trainer.run(step, args=(rows[:2],))
        with strategy.snapshot():
            before = seen(rows).detach().clone()
            for first in range(0, 2_000, 50):  # evicts, and makes the table larger
                trainer.run(step, args=(torch.arange(first, first + 50),))
            assert torch.equal(seen(rows), before)
            assert torch.equal(strategy.run(lambda: seen(rows).detach()), before)
        assert not torch.equal(seen(rows), before)


def test_servers_keep_few_snapshots(cluster: Cluster) -> None:
    """And let go of those whose task has left without a word."""
    with ExitStack() as stack:
        strategies = [stack.enter_context(evaluator(cluster)) for _ in range(5)]
        for strategy in strategies[:4]:
            stack.enter_context(strategy.snapshot())
        refused = pytest.raises(FailedPreconditionError, match="4 clients")
        with refused, strategies[4].snapshot():
            pass
        strategies[0].close()
        with strategies[4].snapshot():
            pass


@pytest.mark.parametrize("consistency", [Bounded(0), Sync(2)])
def test_nobody_waits_for_an_evaluator(consistency: Bounded | Sync) -> None:
    """And it waits for nobody."""

    def program(strategy: ParameterServerStrategy, worker: int) -> float:
        with strategy.scope():
            module = network(2)
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))
        step = training_step(module, optimizer)
        for _ in range(3):
            strategy.run(step)
        strategy.barrier("trained")
        return loss_of(module).item()

    with (
        running(2, 2) as cluster,
        evaluator(cluster, consistency=consistency) as strategy,
        ThreadPoolExecutor(1) as threads,
    ):
        training = threads.submit(cluster.run, program, consistency=consistency)
        with strategy.scope():
            module = network(2)
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))
        strategy.barrier("trained")
        with pytest.raises(FailedPreconditionError, match="only the chief and workers"):
            strategy.run(training_step(module, optimizer))
        losses = set(training.result())
        with strategy.snapshot():
            assert losses == {loss_of(module).item()}


def test_without_a_cluster_a_snapshot_is_what_there_is() -> None:
    strategy = ParameterServerStrategy(SimpleClusterResolver(ClusterSpec({})))
    with strategy.scope():
        number = Variable(1.0)
    with strategy.snapshot():
        assert number.numpy() == 1.0
