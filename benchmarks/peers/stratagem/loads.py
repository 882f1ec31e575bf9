"""What a worker asks of servers in a step, below strategies and without computing anything.

A client that does no more leaves the processors to the servers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from benchmarks.peers.row_batches import BATCHES, LOOKUPS, ROWS, WIDTH
from benchmarks.peers.stratagem.server import created, program
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import reads, updates, variables

SMALL = 25
"""Numbers of a small variable, 100 bytes."""

# As this is loaded, since the first optimizer of a process loads much.
_SGD = program(torch.optim.SGD([torch.zeros(1)], 0.1))
_ADAGRAD = program(torch.optim.Adagrad([torch.zeros(1)]))

Stored = Mapping[str, Tensor]
"""Initial values of the variables of a server, by name."""


class Load(Protocol):
    """The two halves of a step; between them a worker computes."""

    def pull(self) -> None:
        """Get what the step needs."""

    def push(self) -> None:
        """Send what it came to; return when the servers have stepped."""


class SmallUpdates:
    """A gradient of 100 bytes for each server, which steps SGD; nothing is read.

    Args:
        servers: A session with each server.
        worker: The index of the worker.
    """

    name = "small"

    def __init__(self, servers: ServerGroup, worker: int) -> None:
        self._servers = servers
        self._gradients = [updates.SentGradient(self.name, torch.ones(SMALL), group=0)]

    @classmethod
    def stored(cls, servers: int) -> Stored:
        """Return what each of so many servers has."""
        return {cls.name: torch.zeros(SMALL)}

    def pull(self) -> None:
        """Get nothing."""

    def push(self) -> None:
        """Have all servers step."""
        self._servers.call_all(
            {task: updates.step(_SGD, self._gradients) for task in self._servers.called}
        )


class _Batch(NamedTuple):
    """The rows of a step, by the server that has them.

    Attributes:
        readings: What is read of each.
        gradients: What is sent to it.
    """

    readings: Mapping[int, Sequence[reads.RowsReading]]
    gradients: Mapping[int, Sequence[updates.SentGradient]]


class Rows:
    """4,096 rows of 16 floats, out of a million that are spread evenly, stepped by Adagrad.

    Args:
        servers: A session with each server.
        worker: The index of the worker; each draws other rows, evenly.
    """

    name = "rows"

    def __init__(self, servers: ServerGroup, worker: int) -> None:
        self._servers = servers
        drawing = torch.Generator().manual_seed(worker)
        batches = [self._drawn(drawing) for _ in range(BATCHES)]
        self._batches = itertools.cycle(batches)
        self._batch = batches[0]

    @classmethod
    def stored(cls, servers: int) -> Stored:
        """Return what each of so many servers has."""
        return {cls.name: torch.zeros(-(-ROWS // servers), WIDTH)}

    def _drawn(self, drawing: torch.Generator) -> _Batch:
        count = len(self._servers)
        ids = torch.randint(ROWS, (LOOKUPS,), generator=drawing)
        rows = {task: (ids[ids % count == task] // count).unique() for task in range(count)}
        readings = {
            task: [reads.RowsReading([self.name], [mine], torch.empty(len(mine), WIDTH))]
            for task, mine in rows.items()
        }
        gradients = {
            task: [
                updates.SentGradient(self.name, torch.ones(len(mine), WIDTH), group=0, rows=mine)
            ]
            for task, mine in rows.items()
        }
        return _Batch(readings, gradients)

    def pull(self) -> None:
        """Get the rows of the next batch."""
        self._batch = next(self._batches)
        wanted = self._batch.readings.items()
        self._servers.call_all({task: reads.read(each) for task, each in wanted})

    def push(self) -> None:
        """Send a gradient for each of them."""
        sent = self._batch.gradients.items()
        self._servers.call_all({task: updates.step(_ADAGRAD, each) for task, each in sent})


LOADS: Mapping[str, type[SmallUpdates] | type[Rows]] = {
    each.name: each for each in (SmallUpdates, Rows)
}


def create(servers: ServerGroup, load: str) -> None:
    """Have all servers store what a load needs."""
    created(servers, LOADS[load].stored(len(servers)))


def delete(servers: ServerGroup, load: str) -> None:
    """Free it."""
    names = [*LOADS[load].stored(len(servers))]
    servers.on_all(lambda: variables.delete(names))
