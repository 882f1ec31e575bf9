"""A process with several workers, each of them a strategy of its own in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

import stratagem
from stratagem import ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver

# The first optimizer of a process loads much: once for all that are forked.
torch.optim.SGD([torch.zeros(1)])

_ROWS, _DIM, _BATCH = 100_000, 16, 64
COUNTED = 64
"""Numbers of each counter."""


@dataclass(frozen=True)
class Plan:
    """What each worker does.

    Attributes:
        servers: How many there are.
        computing: The seconds that a step waits in place of computing.
    """

    servers: int
    computing: float


class Model(nn.Module):
    """A counter for each server, to which each step adds 1, and a table of which it looks rows up.

    Args:
        counters: How many.
    """

    def __init__(self, counters: int) -> None:
        super().__init__()
        self.counters = nn.ParameterList(
            [nn.Parameter(torch.zeros(COUNTED)) for _ in range(counters)]
        )
        self.table = stratagem.nn.Embedding(_ROWS, _DIM)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = -sum(each.sum() for each in self.counters) - self.table(ids).sum()
        return loss

    def counted(self) -> Sequence[float]:
        """Return the least and the greatest number of all counters."""
        with torch.no_grad():
            values = torch.cat([each.detach() for each in self.counters])
        return [float(values.min()), float(values.max())]


@dataclass(frozen=True)
class Told:
    """How far the workers of a process are.

    Attributes:
        steps: How many steps of each are acknowledged.
        failed: What ended some of them before their time.
    """

    steps: Sequence[int]
    failed: Sequence[str]


class Workers:
    """The workers of a process.

    Args:
        resolvers: Their tasks.
        plan: What they do.
    """

    def __init__(self, resolvers: Sequence[ClusterResolver], plan: Plan) -> None:
        self._plan = plan
        self._steps, self._failed = [0] * len(resolvers), list[str]()
        self._counting: Callable[[], Sequence[float]] | None = None
        self._end, self._over = threading.Event(), threading.Event()
        self._stepping = [
            threading.Thread(target=self._work, args=(place, resolver), daemon=True)
            for place, resolver in enumerate(resolvers)
        ]
        self._done = threading.Barrier(len(resolvers) + 1)
        for each in self._stepping:
            each.start()

    def told(self) -> Told:
        """Return how far they are."""
        return Told([*self._steps], [*self._failed])

    def ended(self) -> Told:
        """End all steps, and return how many were acknowledged."""
        self._end.set()
        self._done.wait()
        return self.told()

    def counted(self) -> Sequence[float]:
        """Return what the servers have counted, as `Model.counted`."""
        return self._counting() if self._counting else []

    def close(self) -> None:
        """End the sessions."""
        self._over.set()
        for each in self._stepping:
            each.join()

    def _work(self, place: int, resolver: ClusterResolver) -> None:
        try:
            with ParameterServerStrategy(resolver) as strategy:
                self._take_steps(place, resolver.task_id or 0, strategy)
                self._done.wait()
                self._over.wait()
        except Exception as error:  # whatever ends a worker is an answer
            self._failed.append(f"/job:worker/task:{resolver.task_id}: {error}")
            self._done.wait()

    def _take_steps(self, place: int, worker: int, strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = Model(self._plan.servers)
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = stratagem.DistributedOptimizer(sgd)
        drawing = torch.Generator().manual_seed(worker)

        def step(ids: Tensor) -> None:
            optimizer.zero_grad()
            loss = model(ids)
            time.sleep(self._plan.computing)
            loss.backward()
            optimizer.step()

        if place == 0:
            self._counting = partial(strategy.run, model.counted)
        while not self._end.is_set():
            strategy.run(step, args=(torch.randint(_ROWS, (_BATCH,), generator=drawing),))
            self._steps[place] += 1


def serve(parent: Connection, resolvers: Sequence[ClusterResolver], plan: Plan) -> None:
    """Have workers take steps, and answer what is asked of them by the names of `Workers`."""
    torch.set_num_threads(1)
    workers = Workers(resolvers, plan)
    with suppress(EOFError), closing(workers):
        while True:
            parent.send(getattr(workers, parent.recv())())
