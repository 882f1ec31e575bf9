"""Chiefs that are killed in the midst of synchronous training, and started again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from stratagem import DistributedOptimizer, MultiWorkerMirroredStrategy, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import UnavailableError
from tests.cluster.interventions import beside
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEPS, KILLS, WORKERS = 60, 3, 2


def gradient(step: int, worker: int) -> torch.Tensor:
    return torch.full((7,), float(3 * step % 5 + worker))


def train(resolver: SimpleClusterResolver, folder: Path) -> list[float]:
    """Take all steps that are left, and return the parameters."""
    worker = resolver.task_id or 0
    strategy = ParameterServerStrategy(resolver, consistency="sync")
    with strategy.scope():
        module = torch.nn.ParameterList([torch.zeros(7), torch.zeros(7)])
    adam = DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    report = strategy.consistency_report().get(adam.name)
    done = report.completed if report else 0

    def step() -> None:
        for parameter in module:
            parameter.grad = gradient(number, worker)
        adam.step()

    for number in range(done, STEPS):
        strategy.run(step)
        (folder / f"worker-{worker}").write_text(str(number + 1))
        time.sleep(0.02)  # so that all kills come before the end
    strategy.barrier("trained")
    (folder / f"starts-{worker}").open("a").write(f"{done}\n")
    return torch.cat([each.detach() for each in module]).tolist()


def trained_alone() -> list[float]:
    parameters = [torch.nn.Parameter(torch.zeros(7)) for _ in range(2)]
    adam = torch.optim.Adam(parameters, lr=0.1)
    for number in range(STEPS):
        for parameter in parameters:
            parameter.grad = gradient(number, 0) + gradient(number, 1)
        adam.step()
    return torch.cat([each.detach() for each in parameters]).tolist()


def kill_again_and_again(cluster: LocalCluster, folder: Path) -> Callable[[], None]:
    """Return what kills the chief whenever it has taken some more steps."""

    def kill() -> None:
        chance = random.Random(5)
        for number in range(1, KILLS + 1):
            eventually(partial(has_taken, folder, number * STEPS // (KILLS + 2)), 100.0)
            time.sleep(chance.random() / 20)
            cluster.restart("worker", 0)

    return kill


def has_taken(folder: Path, steps: int) -> bool:
    return taken(folder, 0) >= steps


def taken(folder: Path, worker: int) -> int:
    file = folder / f"worker-{worker}"
    return int(file.read_text() or 0) if file.exists() else 0


def test_a_chief_that_is_killed_is_replaced_by_its_restart_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is known to be gone long before it is there again.
    monkeypatch.setenv("STRATAGEM_RECONNECT_SECONDS", "0.2")
    with (
        LocalCluster(ps=2, workers=WORKERS, processes=True) as cluster,
        beside(kill_again_and_again(cluster, tmp_path)),
    ):
        results = cluster.run(train, tmp_path)
    assert results == [trained_alone()] * WORKERS
    assert (tmp_path / "starts-1").read_text() == "0\n", "the other worker began once"
    assert int((tmp_path / "starts-0").read_text()) >= STEPS // (KILLS + 2)


def meet(resolver: SimpleClusterResolver, folder: Path) -> None:
    strategy = MultiWorkerMirroredStrategy(resolver)
    for number in range(1_000_000):
        strategy.reduce("sum", torch.tensor(1.0), axis=None)
        (folder / f"worker-{resolver.task_id}").write_text(str(number))


def test_without_servers_the_others_end_and_name_the_chief(tmp_path: Path) -> None:
    def restart() -> None:
        eventually(lambda: taken(tmp_path, 1) > 10, 100.0)
        cluster.restart("worker", 0)

    with LocalCluster(ps=0, workers=WORKERS, processes=True) as cluster:
        missing = "missing: /job:worker/replica:0/task:0"
        with beside(restart), pytest.raises(UnavailableError, match=missing):
            cluster.run(meet, tmp_path)
