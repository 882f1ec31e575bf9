"""Two workers that step two parameters, one on each of two servers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem._parameter_server.extended import ParameterServerExtended
from tests.client.clusters import Cluster, running
from tests.waiting import eventually


class Pair:
    """A worker that steps two parameters, one on each of two servers.

    Its gradients are 3 and 4 times its number plus 1, so that their norm is bounded.
    """

    def __init__(self, strategy: ParameterServerStrategy, **settings: Any) -> None:
        self.strategy = strategy
        self.number = strategy.cluster_resolver.task_id or 0
        with strategy.scope():
            self.model = nn.Linear(1, 1)
            nn.init.zeros_(self.model.weight)
            nn.init.zeros_(self.model.bias)
        sgd = torch.optim.SGD(self.model.parameters(), lr=1.0)
        settings = {"clip_norm": 1.0, **settings}
        self.optimizer = DistributedOptimizer(sgd, **settings)
        self.thread = ThreadPoolExecutor(1)
        self._run: Future[None] | None = None

    def step(self, weight: float | None = None, bias: float = 4.0) -> None:
        weight = 3.0 * (self.number + 1) if weight is None else weight
        self.model.weight.grad = torch.tensor([[weight]])
        self.model.bias.grad = torch.tensor([bias * (self.number + 1)])
        self.optimizer.step()

    def run(self, *gradients: float) -> None:
        """Takes a step, as far as that goes without the other worker."""
        self.finish()
        before = self._counted
        run = self.thread.submit(self.strategy.run, self.step, gradients)
        self._run = run
        eventually(lambda: run.done() or self._counted != before)
        if run.done():
            self.finish()

    def complete(self) -> None:
        """Takes a step for which nobody else is missing."""
        self.run()
        self.finish()

    def finish(self) -> None:
        """Waits for the end of the run that was begun last; raises what it raised."""
        if self._run is not None:
            run, self._run = self._run, None
            run.result(60.0)

    @property
    def _counted(self) -> dict[str, int]:
        extended = self.strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        return extended._store.step_tracker.contributed()

    def values(self) -> list[float]:
        self.finish()
        self.strategy.refresh()
        return [self.model.weight.item(), self.model.bias.item()]


def after(steps: int, order: Sequence[int] = (0, 1), **settings: Any) -> list[float]:
    """What both parameters are after steps that nothing disturbs."""
    with running(num_servers=2, num_workers=2) as cluster, ExitStack() as stack:
        workers = pairs(stack, cluster, **settings)
        for _ in range(steps):
            for number in order:
                workers[number].run()
        values = [worker.values() for worker in workers]
    assert values[0] == values[1]
    return values[0]


def pairs(stack: ExitStack, cluster: Cluster, **settings: Any) -> list[Pair]:
    strategies = [
        stack.enter_context(cluster.strategy(number, consistency="sync")) for number in range(2)
    ]
    return [Pair(strategy, **settings) for strategy in strategies]
