"""Workers that train a table of embeddings until there is an end, and check it afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

import stratagem
from stratagem import ParameterServerStrategy, partitioners
from stratagem.cluster_resolver import ClusterResolver

LAST_STEP = "last-step"
"""The file that holds the number of the last step, once there is one."""

DIM, _BATCH = 16, 256
_ROWS_AT_ONCE = 100_000


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        folder: Where workers write the moments of their steps.
        rows: How many rows the table has.
        tasks: Over how many tasks of the job ps it is divided.
        consistency: The mode of the strategy.
        workers: How many workers there are.
        computing: The seconds that a step computes on an accelerator, for which the host only
            waits.
    """

    folder: Path
    rows: int
    tasks: int
    consistency: str
    workers: int
    computing: float

    def moments(self, worker: int) -> Sequence[float]:
        """Return when a worker has taken its steps, in seconds."""
        file = self.folder / f"steps-{worker}"
        return [float(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    def is_over(self, steps: int) -> bool:
        """Return whether so many steps are enough."""
        file = self.folder / LAST_STEP
        return file.exists() and steps >= int(file.read_text())

    @property
    def parts(self) -> Sequence[Tensor]:
        """The ids of all rows, so many at once as a step takes."""
        parts: Sequence[Tensor] = torch.arange(self.rows).split(_ROWS_AT_ONCE)
        return parts

    def share(self, worker: int) -> Sequence[Tensor]:
        """Return the parts to which a worker adds 1 at first."""
        # Workers that step together take each of these steps together.
        return self.parts if self.consistency == "sync" else self.parts[worker :: self.workers]


def train(resolver: ClusterResolver, plan: Plan) -> int:
    """Add 1 to the rows of random ids, until there was the last step.

    Returns:
        The number of rows that have not the value that they should have, of the worker's share.
    """
    partitioner = partitioners.FixedShardsPartitioner(plan.tasks)
    with ParameterServerStrategy(
        resolver, variable_partitioner=partitioner, consistency=plan.consistency
    ) as strategy:
        with strategy.scope():
            table = stratagem.nn.Embedding(plan.rows, DIM)
            nn.init.zeros_(table.weight)
        _take_steps(strategy, table, plan, resolver.task_id or 0)
        strategy.barrier("trained")
        return _wrong_rows(table, plan, resolver.task_id or 0)


def _take_steps(
    strategy: ParameterServerStrategy, table: nn.Embedding, plan: Plan, worker: int
) -> None:
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))

    def step(ids: Tensor, computing: float) -> None:
        optimizer.zero_grad()
        loss = -table(ids).sum()
        time.sleep(computing)
        loss.backward()
        optimizer.step()

    # Servers store the rows only that were written.
    for ids in plan.share(worker):
        strategy.run(step, args=(ids, 0.0))
    with (plan.folder / f"steps-{worker}").open("w", buffering=1) as moments:
        for number, ids in enumerate(_batches(plan, worker)):
            if plan.is_over(number):
                break
            strategy.run(step, args=(ids, plan.computing))
            moments.write(f"{time.monotonic()}\n")


def _batches(plan: Plan, worker: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(worker)
    while True:
        yield torch.randint(plan.rows, (_BATCH,), generator=generator)


def _wrong_rows(table: nn.Embedding, plan: Plan, worker: int) -> int:
    expected = _expected(plan)
    with torch.no_grad():
        return sum(
            int((table(ids) != expected[ids, None]).any(1).sum())
            for ids in plan.parts[worker :: plan.workers]
        )


def _expected(plan: Plan) -> Tensor:
    """Return the value of each row: how often it was trained."""
    counts = torch.zeros(plan.rows)
    for worker in range(plan.workers):
        steps = len(plan.moments(worker))
        for ids in islice(_batches(plan, worker), steps):
            counts.index_put_((ids,), torch.tensor(1.0), accumulate=True)
    # A synchronous step applies the mean of what workers contribute.
    return 1.0 + (counts / plan.workers if plan.consistency == "sync" else counts)
