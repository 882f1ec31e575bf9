"""Tasks that move between servers while programs train."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

import stratagem
from stratagem import ParameterServerStrategy, TaskMove
from stratagem_deploy import LocalCluster
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

WORKERS, STEPS, PATIENCE = 2, 60, 300.0


@contextmanager
def strategies(cluster: LocalCluster, consistency: str) -> Iterator[list[ParameterServerStrategy]]:
    """Those of all workers, which are threads of this process."""
    made = [
        ParameterServerStrategy(
            cluster.resolver("worker", index), consistency=consistency, peer_seconds=PATIENCE
        )
        for index in range(WORKERS)
    ]
    try:
        yield made
    finally:
        for strategy in made:
            strategy.close()


class Training:
    """Workers that take steps, each of which adds 1 to three parameters."""

    def __init__(self) -> None:
        self.taken = 0
        self.goes_on = threading.Event()

    def train(self, strategy: ParameterServerStrategy) -> list[float]:
        """Takes steps, of which the last ones wait; returns the parameters."""
        with strategy.scope():
            module = torch.nn.Module()
            for name, size in (("small", 3), ("large", 300_000), ("other", 10), ("last", 1)):
                module.register_parameter(name, torch.nn.Parameter(torch.zeros(size)))
        sgd = torch.optim.SGD(module.parameters(), lr=1.0)
        optimizer = stratagem.DistributedOptimizer(sgd)

        def step() -> None:
            for parameter in module.parameters():
                parameter.grad = -torch.ones_like(parameter)
            optimizer.step()

        while not self.goes_on.is_set() or self.taken < STEPS:
            strategy.run(step)
            if strategy.cluster_resolver.task_id == 0:
                self.taken += 1
            if self.goes_on.is_set():
                break
        strategy.barrier("trained")
        strategy.refresh()
        return [float(each.detach().min()) for each in module.parameters()]
