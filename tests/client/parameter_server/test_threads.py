"""Programs that train in one thread and evaluate in another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from tests.client.clusters import running
from tests.full import a_few

STEPS = 150


def train_beside_evaluation(strategy: ParameterServerStrategy, worker: int) -> float:
    """Returns a sum to which each step adds 1; also where rows are many."""
    with strategy.scope():
        module = nn.Linear(200, 1, bias=False)
        nn.init.zeros_(module.weight)
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer, trained = DistributedOptimizer(sgd, "sum"), threading.Event()
    strategy.barrier("built")

    def step() -> None:
        optimizer.zero_grad()
        # Its gradient needs the weight as it was in forward.
        loss = -(module(torch.ones(1, 200)) + 0 * module.weight.square().sum())
        loss.sum().backward()
        optimizer.step()

    @torch.no_grad()
    def evaluate() -> float:
        return float(module(torch.ones(1, 200)))

    def evaluate_until_trained() -> int:
        count = 0
        while not trained.is_set() or not count:
            strategy.run(evaluate)
            count += 1
        return count

    with ThreadPoolExecutor(1) as threads:
        evaluations = threads.submit(evaluate_until_trained)
        try:
            for _ in range(STEPS):
                strategy.run(step)
        finally:
            trained.set()
        assert evaluations.result(60) > 0
    strategy.barrier("trained")
    return module.weight[0, 0].item()


@a_few("workers", [1, 2], "two workers take what one takes, and wait for each other")
@a_few(
    "settings",
    [{}, {"fused_steps": False}],
    "fused and plain steps are told apart by the tests of pushes",
)
def test_one_thread_may_evaluate_while_another_trains(
    workers: int, settings: dict[str, Any]
) -> None:
    with running(2, num_workers=workers) as cluster:
        sums = cluster.run(train_beside_evaluation, **settings)
    assert sums == [workers * STEPS] * workers


def test_threads_that_only_look_see_what_was_changed() -> None:
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy(0) as chief,
        cluster.strategy(1) as other,
    ):
        modules = []
        for strategy in (chief, other):
            with strategy.scope():
                modules.append(nn.Linear(1, 1, bias=False))
        inside, over = threading.Event(), threading.Event()

        def look(wait: Callable[[], object]) -> float:
            wait()
            return modules[1].weight.item()

        def wait() -> None:
            inside.set()
            over.wait(60)

        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(other.run, look, (wait,))
            inside.wait(60)
            with torch.no_grad():
                modules[0].weight.fill_(5.0)
            chief.refresh()
            assert other.run(look, (lambda: None,)) == 5.0
            over.set()
            first.result(60)
