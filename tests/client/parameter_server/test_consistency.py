"""How far workers drift apart, and changing that while they train."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import stratagem
from stratagem import (
    DeadlineExceededError,
    DistributedOptimizer,
    InvalidArgumentError,
    InvalidTypeError,
    ParameterServerStrategy,
)
from stratagem.consistency import Async, Bounded, Consistency, Sync
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster, running
from tests.client.parameter_server.counter import Counter
from tests.conftest import TOKEN
from tests.full import a_few

STEPS = 20


@a_few(
    "consistency",
    ["async", Bounded(0), Bounded(3), "sync"],
    "each mode is tried by tests/consistency",
    2,
)
def test_what_all_workers_add_is_there(consistency: Consistency | str) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        counter = Counter(strategy)
        for _ in range(STEPS):
            counter.add()
        return counter.sums()

    with running(num_servers=2, num_workers=2) as cluster:
        results = cluster.run(program, consistency=consistency)
    assert results == [[2.0 * STEPS] * 2] * 2


def test_nobody_reads_too_far_ahead_of_the_slowest() -> None:
    ahead: list[float] = []
    done = [0, 0]

    def program(strategy: ParameterServerStrategy, worker: int) -> None:
        counter = Counter(strategy)
        strategy.barrier("built")
        for _ in range(STEPS):
            strategy.refresh()
            ahead.append(done[worker] - min(done))
            counter.add()
            done[worker] += 1

    with running(num_servers=2, num_workers=2) as cluster:
        cluster.run(program, consistency=Bounded(1))
    assert max(ahead) <= 1


def test_a_worker_that_is_too_slow_is_named() -> None:
    with (
        running(num_servers=1, num_workers=2) as cluster,
        cluster.strategy(0, consistency=Bounded(2), peer_seconds=0.3) as strategy,
    ):
        counter = Counter(strategy)
        for _ in range(3):
            counter.add()
        with pytest.raises(
            DeadlineExceededError, match="has finished 3 steps, but worker 1 only 0"
        ):
            counter.add()


def test_backups_who_come_too_late_are_dropped_and_counted() -> None:
    begun, over = threading.Event(), threading.Event()

    def program(
        strategy: ParameterServerStrategy, worker: int
    ) -> tuple[list[float], dict[str, int]]:
        counter = Counter(strategy)
        if worker == 2:
            # It takes the first step until the others have closed it, and more.
            counter.before_push = partial(_wait_for, begun, over)
            counter.add()
        else:
            begun.wait(60)
            for _ in range(STEPS):
                counter.add()
            strategy.refresh()
            over.set()
        sums = counter.sums()
        report = strategy.consistency_report()["SGD"]
        return sums, {task: each.dropped for task, each in report.workers.items()}

    with running(num_servers=2, num_workers=3) as cluster:
        results = cluster.run(program, consistency=Sync(2))
    dropped = {f"/job:worker/task:{worker}": worker // 2 for worker in range(3)}
    assert results == [([2.0 * STEPS] * 2, dropped)] * 3


def _wait_for(here: threading.Event, there: threading.Event) -> None:
    here.set()
    there.wait(60)


@pytest.mark.full("modes are changed on a server in tests/psserver/consistency")
def test_the_chief_changes_the_consistency_while_all_train() -> None:
    changes: list[Consistency | str] = ["sync", Bounded(1), Sync(1), "async", "sync"]

    def program(
        strategy: ParameterServerStrategy, worker: int
    ) -> tuple[list[float], Consistency, bool]:
        counter = Counter(strategy)
        for consistency in changes:
            for _ in range(STEPS):
                counter.add()
            strategy.barrier("done")
            # In workers that are not the chief this does nothing.
            strategy.set_consistency(consistency)
            # So that all have as many steps before them.
            strategy.barrier("changed")
        for _ in range(STEPS):
            counter.add()
        report = strategy.consistency_report()["SGD"]
        return counter.sums(), report.consistency, report.since > STEPS

    with running(num_servers=2, num_workers=2) as cluster:
        first, second = cluster.run(program)
    assert first == second
    sums, *rest = first
    assert rest == [Sync(), True]
    # Of steps that the first contribution closes, the second is dropped.
    assert 2 * STEPS * len(changes) <= sums[0] == sums[1] < 2 * STEPS * 6


def test_a_change_holds_for_one_optimizer() -> None:
    with running() as cluster, cluster.strategy() as strategy:
        counters = [Counter(strategy), Counter(strategy, Bounded(2)), Counter(strategy)]
        for counter in counters:
            counter.add()
        strategy.set_consistency("sync", counters[0].optimizer)
        report = strategy.consistency_report()
        assert {name: each.consistency for name, each in report.items()} == {
            "SGD": Sync(),
            "SGD_1": Bounded(2),
            "SGD_2": Async(),
        }
        strategy.set_consistency(Bounded(5))
        report = strategy.consistency_report()
        assert {each.consistency for each in report.values()} == {Bounded(5)}
        with pytest.raises(InvalidArgumentError, match=r"no optimizer 'Adam'; .* SGD,"):
            strategy.set_consistency("async", "Adam")


@pytest.mark.full("servers tell who comes where the others are in tests/psserver")
def test_a_worker_started_again_alone_takes_part_where_the_others_are() -> None:
    half, again = threading.Barrier(2), threading.Barrier(2)

    def program(strategy: ParameterServerStrategy, worker: int) -> list[float]:
        counter = Counter(strategy)
        for _ in range(STEPS):
            counter.add()
        strategy.refresh()
        half.wait(60)
        if worker == 1:
            strategy.close()
            strategy = cluster.strategy(1, consistency="sync")
            counter = Counter(strategy)
        again.wait(60)
        for _ in range(STEPS):
            counter.add()
        strategy.refresh()
        with strategy:
            return [parameter.item() for parameter in counter.module.parameters()]

    with running(num_servers=2, num_workers=2) as cluster:
        results = cluster.run(program, consistency="sync")
    assert results == [[4.0 * STEPS] * 2] * 2


@pytest.mark.parametrize(
    ("consistency", "error", "says"),
    [
        ("eventual", InvalidArgumentError, "must be one of async, bounded, sync"),
        (3, InvalidTypeError, "or a value of stratagem.consistency, not 3"),
        (Sync(3), InvalidArgumentError, "only 2 workers contribute"),
    ],
)
def test_a_consistency_must_be_possible(
    consistency: Consistency, error: type[Exception], says: str
) -> None:
    with (
        running(num_servers=1, num_workers=2) as cluster,
        pytest.raises(error, match=says),
    ):
        cluster.strategy(consistency=consistency)


@pytest.mark.parametrize("make", [lambda: Bounded(-1), lambda: Sync(0), lambda: Sync(-1)])
def test_bounds_have_bounds(make: Callable[[], Consistency]) -> None:
    with pytest.raises(InvalidArgumentError, match="or more, not"):
        make()


def test_without_a_cluster_all_consistencies_are_the_same() -> None:
    strategy = ParameterServerStrategy(consistency=Bounded(2))
    counter = Counter(strategy, Sync())
    counter.add()
    strategy.set_consistency("sync")
    assert counter.sums() == [1.0, 1.0]
    assert strategy.consistency_report() == {}


@pytest.mark.parametrize("rank", [0, 1])
def test_processes_of_torchrun_hear_that_each_trains_by_itself(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    ParameterServerStrategy()
    said = [each for each in caplog.messages if "process 1 of 2 trains a model of its own" in each]
    assert len(said) == rank


def test_where_replicas_are_always_in_sync_there_is_no_choice() -> None:
    strategy = stratagem.MirroredStrategy()
    with strategy.scope():
        module = nn.Linear(1, 1)
    with pytest.raises(InvalidArgumentError, match="under MirroredStrategy all"):
        DistributedOptimizer(torch.optim.SGD(module.parameters()), consistency="bounded")


def test_a_server_that_restarts_keeps_what_was_set(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        counter = Counter(strategy)
        counter.add()
        strategy.set_consistency(Bounded(2))
        since = strategy.consistency_report()["SGD"].since
        strategy.save(tmp_path)
    settings = ServerSettings(token=TOKEN, restore=str(tmp_path))
    with (
        ParameterServer(settings) as server,
        Cluster([server.address], 1).strategy() as strategy,
    ):
        counter = Counter(strategy)
        counter.add()
        assert counter.sums() == [2.0, 2.0]
        report = strategy.consistency_report()["SGD"]
        assert (report.consistency, report.since) == (Bounded(2), since)
