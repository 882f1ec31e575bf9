"""Chiefs and workers that are killed at any moment, and join the run when they come back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import DistributedOptimizer, ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy import LocalCluster
from tests.cluster.interventions import beside
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEPS = 100


def train(
    resolver: SimpleClusterResolver, folder: Path, consistency: str
) -> tuple[list[float], list[int]]:
    """Add 1 to two variables and a model on two servers in each step that is left.

    Returns:
        What all tasks have made of them, and the position of the data of this one.
    """
    worker = resolver.task_id or 0
    with ParameterServerStrategy(resolver, consistency=consistency, peer_seconds=100) as strategy:
        with strategy.scope():
            counts = [Variable(0.0, name="first"), Variable(0.0, name="second")]
            module = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1)])
        optimizer = DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
        data = Data()
        strategy.register_for_checkpointing("data", data)
        checkpoints = folder / "run"
        if checkpoints.exists():
            strategy.restore(checkpoints)

        def step() -> None:
            for parameter in module:
                parameter.grad = -torch.ones(1)
            optimizer.step()

        for number in strategy.steps(STEPS):
            data.read(number)
            strategy.run(step)
            for count in counts:
                count.assign_add(1.0)
            (folder / f"worker-{worker}").write_text(str(number + 1))
            if number % 10 == 9:
                strategy.save(checkpoints, keep=2, extra={"step": number + 1})
        strategy.barrier("trained")
        values = [*(float(one.numpy()) for one in counts), *(float(one.sum()) for one in module)]
        return values, data.state_dict()


class Data:
    """Remembers how far it was read, and fails if an element is left out or read twice."""

    def __init__(self) -> None:
        self._next = 0

    def read(self, number: int) -> None:
        assert number == self._next, f"element {number} is read instead of {self._next}"
        self._next += 1

    def state_dict(self) -> Any:
        return self._next

    def load_state_dict(self, state_dict: Any) -> None:
        self._next = state_dict


def has_taken(folder: Path, worker: int, steps: int) -> bool:
    file = folder / f"worker-{worker}"
    text = file.read_text() if file.exists() else ""
    return bool(text) and int(text) >= steps


def kill(cluster: LocalCluster, folder: Path, worker: int, chance: random.Random) -> None:
    """Kill a worker at a random moment, and start it again."""
    eventually(partial(has_taken, folder, worker, chance.randrange(1, STEPS - 5)), 100.0)
    time.sleep(chance.random() / 50)
    cluster.restart("worker", worker)


def require_exact(cluster: LocalCluster, folder: Path, consistency: str, seed: int) -> None:
    """Train while a worker is killed, and compare with what no death ends with."""
    folder.mkdir()
    chance = random.Random(seed)
    death: Callable[[], None] = partial(kill, cluster, folder, chance.randrange(2), chance)
    with beside(death):
        trained = cluster.run(train, folder, consistency)
    # Contributions to a synchronous step are averaged.
    steps = float(STEPS if consistency == "sync" else 2 * STEPS)
    assert trained == 2 * [([2.0 * STEPS, 2.0 * STEPS, steps, steps], STEPS)], f"seed {seed}"


@pytest.mark.parametrize("consistency", ["async", "bounded", "sync"])
def test_a_death_at_any_moment_ends_with_what_no_death_ends_with(
    tmp_path: Path, consistency: str
) -> None:
    with LocalCluster(ps=2, workers=2, processes=True) as cluster:
        require_exact(cluster, tmp_path / "run", consistency, seed=len(consistency))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("consistency", ["async", "bounded", "sync"])
def test_thirty_deaths_at_any_moment_end_with_what_no_death_ends_with(
    tmp_path: Path, consistency: str
) -> None:
    for seed in range(100, 130):
        with LocalCluster(ps=2, workers=2, processes=True) as cluster:
            require_exact(cluster, tmp_path / str(seed), consistency, seed)
