"""Two workers that train while something happens to servers, as threads of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

import stratagem
from stratagem import ParameterServerStrategy
from stratagem_deploy import LocalCluster
from tests.waiting import eventually

WORKERS, STEPS = 2, 60

# Starting a process takes long on a busy machine.
PATIENCE = 300.0


@contextmanager
def strategies(
    cluster: LocalCluster, consistency: str = "async", connect_seconds: float = 60.0
) -> Iterator[list[ParameterServerStrategy]]:
    """Those of all workers."""
    made = [
        ParameterServerStrategy(
            cluster.resolver("worker", index),
            consistency=consistency,
            connect_seconds=connect_seconds,
            peer_seconds=PATIENCE,
        )
        for index in range(WORKERS)
    ]
    try:
        yield made
    finally:
        for strategy in made:
            strategy.close()


def trained(
    cluster: LocalCluster,
    consistency: str,
    meanwhile: Callable[[ParameterServerStrategy], None],
    shapes: tuple[int, ...] = (1,),
) -> list[list[float]]:
    """Train parameters, each step of which adds 1 to each of them.

    Args:
        cluster: Where.
        consistency: The mode of the strategies.
        meanwhile: Is called after some steps with a strategy; all but the last steps may be taken
            before it has ended.
        shapes: The size of each parameter.

    Returns:
        The mean of each parameter at the end, as each worker sees it.
    """
    training = _Training(shapes)
    with (
        strategies(cluster, consistency) as made,
        ThreadPoolExecutor(WORKERS) as threads,
    ):
        workers = [threads.submit(training.train, *each) for each in enumerate(made)]
        # What a client has never sent before is not repeated at a replica that has no backup.
        eventually(lambda: all(count > STEPS // 6 for count in training.taken), PATIENCE)
        meanwhile(made[0])
        training.goes_on.set()
        return [each.result(PATIENCE) for each in workers]


def expected(consistency: str, parameters: int = 1) -> list[list[float]]:
    """What `trained` returns if each step counts once."""
    steps = STEPS if consistency == "sync" else WORKERS * STEPS
    return [[float(steps)] * parameters] * WORKERS


class _Training:
    def __init__(self, shapes: tuple[int, ...]) -> None:
        self.taken, self._shapes = [0] * WORKERS, shapes
        self.goes_on = threading.Event()

    def train(self, worker: int, strategy: ParameterServerStrategy) -> list[float]:
        with strategy.scope():
            parameters = torch.nn.ParameterList([torch.zeros(size) for size in self._shapes])
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))

        def step() -> None:
            for parameter in parameters:
                parameter.grad = -torch.ones_like(parameter)
            optimizer.step()

        for number in range(STEPS):
            strategy.run(step)
            self.taken[worker] += 1
            if number == STEPS - 2:
                assert self.goes_on.wait(PATIENCE)
        strategy.barrier("trained")
        strategy.refresh()
        return [float(each.detach().mean()) for each in parameters]
