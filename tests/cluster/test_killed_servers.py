"""Servers with logs that are killed while others train, in each mode of consistency."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem import IndexedSlices, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ROWS, BATCH = 90, 3
STEPS, WORKERS = 40, 2
SIZES = 7, 5
# A step takes so long that servers are killed within many of them.
STEP_SECONDS = 0.05


KILLS = 3
# Beyond this size a log has more than the variables' creation.
TRAINING_BYTES = 5_000


def cluster(folder: Path, workers: int = 0, worker_servers: int = 0) -> LocalCluster:
    """Two servers that go on after their end, and other tasks."""
    return LocalCluster(
        ps=2,
        workers=workers,
        worker_servers=worker_servers,
        processes=True,
        durability="log",
        durability_folder=folder,
    )


@contextmanager
def killing(running: LocalCluster, folder: Path) -> Iterator[None]:
    """Kills servers and starts them again, once the body has changed something."""
    failures = list[BaseException]()
    chance = random.Random(7)

    def kill() -> None:
        try:
            eventually(lambda: logged(folder) > TRAINING_BYTES)
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.2, 1.0))
                victim = chance.randrange(2)
                running.kill("ps", victim)
                running.restart("ps", victim)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert failures == []


def logged(folder: Path) -> int:
    """Returns how many bytes all servers have logged."""
    return sum(path.stat().st_size for path in folder.glob("ps-*/segment-*.log"))


def gradients(step: int, worker: int) -> list[torch.Tensor]:
    return [torch.full((size,), float((3 * step + size) % 5 + worker)) for size in SIZES]


def train(resolver: SimpleClusterResolver, consistency: str) -> list[list[float]]:
    strategy = ParameterServerStrategy(resolver, consistency=consistency)
    with strategy.scope():
        module = torch.nn.ParameterList([torch.zeros(size) for size in SIZES])
    optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))

    def step(number: int) -> None:
        time.sleep(STEP_SECONDS)
        for parameter, gradient in zip(
            module, gradients(number, resolver.task_id or 0), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()

    for number in range(STEPS):
        strategy.run(step, (number,))
    strategy.refresh()
    return [parameter.detach().tolist() for parameter in module]


def trained_alone() -> list[list[float]]:
    """What synchronous training comes to."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for number in range(STEPS):
        parts = [gradients(number, worker) for worker in range(WORKERS)]
        for parameter, *each in zip(parameters, *parts, strict=True):
            parameter.grad = sum(each[1:], each[0].clone())
        optimizer.step()
    return [parameter.detach().tolist() for parameter in parameters]


def test_synchronous_training_comes_to_the_bytes_of_one_process(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=WORKERS) as running, killing(running, tmp_path):
        trained = running.run(train, "sync")
    assert trained == [trained_alone()] * WORKERS


def add(resolver: SimpleClusterResolver, consistency: str) -> list[int]:
    """Adds powers to two counters, each by every worker; returns what it reads in the end."""
    strategy = ParameterServerStrategy(resolver, consistency=consistency)
    with strategy.scope():
        counters = [Variable(torch.tensor(0), False, name=f"on{server}") for server in range(2)]
    worker = resolver.task_id or 0

    def step() -> None:
        time.sleep(STEP_SECONDS)
        for counter in counters:
            counter.assign_add(1000**worker)

    for _ in range(STEPS):
        strategy.run(step)
    strategy.barrier("added")
    return [int(counter.numpy()) for counter in counters]


@pytest.mark.parametrize("consistency", ["async", "bounded"])
def test_additions_are_there_once(consistency: str, tmp_path: Path) -> None:
    with cluster(tmp_path, workers=WORKERS) as running, killing(running, tmp_path):
        sums = running.run(add, consistency)
    assert sums == [[STEPS + 1000 * STEPS] * 2] * WORKERS


def count(batches: Any, rows: Variable, functions: Variable) -> None:
    """Count the rows of a batch on one server, and the function on the other."""
    (ids,) = next(batches)
    time.sleep(STEP_SECONDS)
    rows.scatter_add(IndexedSlices(torch.ones_like(ids), ids))
    functions.assign_add(1)


def test_each_batch_of_a_coordinator_counts_once(tmp_path: Path) -> None:
    with (
        cluster(tmp_path, worker_servers=WORKERS) as running,
        ParameterServerStrategy(running.cluster_resolver) as strategy,
        killing(running, tmp_path),
    ):
        with strategy.scope():
            rows = Variable(torch.zeros(ROWS, dtype=torch.int64), False, name="rows")
            functions = Variable(torch.tensor(0), False, name="functions")
        coordinator = ClusterCoordinator(strategy)
        loader = DataLoader(TensorDataset(torch.arange(ROWS)), BATCH, shuffle=True)
        batches = iter(coordinator.create_per_worker_dataset(loader, True, "numbers"))
        for _ in range(batches.remaining):
            coordinator.schedule(count, args=(batches, rows, functions))
        coordinator.join()
        assert rows.numpy().tolist() == [1] * ROWS
        assert int(functions.numpy()) == ROWS // BATCH
