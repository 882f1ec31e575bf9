"""Workers that train by strategies on real servers, and record what they see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import nn

from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.consistency import Async
from tests.consistency.history import (
    Answered,
    Event,
    Leave,
    Read,
    Reading,
    Seen,
    Sent,
)

SERVERS = 2
_reads = count()


class StrategyWorker:
    """One worker, of an asynchronous group.

    Each server hosts the counts of all workers, and the last step of each of them.

    Args:
        strategy: Its strategy.
        number: Which worker it is.
        num_workers: Of how many.
        history: Where it writes what happens; all workers share it.
        lag: With which push a step's values are read: 0 for none, as they are read when the step
            begins; 1 for the last one, 2 for the one before.
        flies: Whether pushes are known to be answered only with the next one.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        number: int,
        num_workers: int,
        history: list[Event],
        lag: int = 0,
        flies: bool = False,
    ) -> None:
        self._strategy, self._number, self._lag = strategy, number, lag
        self._history, self._flies = history, flies
        with strategy.scope():
            # In turn, the first of two on the first server.
            self._counts = nn.ParameterList([torch.zeros(num_workers) for _ in range(SERVERS)])
            self._lasts = nn.ParameterList([torch.zeros(1) for _ in range(SERVERS * num_workers)])
        self._optimizer = DistributedOptimizer(_adding(self._counts, self._lasts), "sum")
        self._step = 0
        # Reads that were sent, by the step that they are for.
        self._sent = defaultdict[int, list[int]](list)

    def train(self, steps: int) -> None:
        """Takes steps, and has all of them answered."""
        for _ in range(steps):
            self.take_step()
        self._strategy.refresh()
        if self._flies:
            self._history.append(Answered(self._number, self._step))

    def take_step(self) -> None:
        """Takes one step."""
        self._step += 1
        self._history.append(Leave(self._number, self._step, Async()))
        if self._step == 1 or not self._lag:
            self._send_reads(self._step, behind=self._step - 1)
        for later in range(2, self._lag + 1) if self._step == 1 else ():
            # Nothing is asked for before these, so they have the same values.
            self._send_reads(later, behind=0)
        self._strategy.run(self._take)

    def _send_reads(self, step: int, behind: int) -> None:
        """Takes note that a step's values are asked for now, of each server."""
        for _ in range(SERVERS):
            self._sent[step].append(next(_reads))
            reading = Reading(self._number, self._sent[step][-1], behind)
            self._history.append(reading)

    def _take(self) -> None:
        step, number = self._step, self._number
        for server, read in enumerate(self._sent.pop(step)):
            self._history.append(Read(number, read, self._seen(server)))
        self._set_gradients()
        self._history.append(Sent(number, step))
        if self._lag:
            self._send_reads(step + self._lag, behind=step)
        self._optimizer.step()
        if answered := step - self._flies:
            self._history.append(Answered(number, answered))

    def _seen(self, server: int) -> Sequence[Seen]:
        counts = self._counts[server].tolist()
        lasts = [float(last) for last in self._lasts_of(server)]
        return [(int(n), int(last)) for n, last in zip(counts, lasts, strict=True)]

    def _lasts_of(self, server: int) -> list[torch.Tensor]:
        return [last.detach() for last in [*self._lasts][server::SERVERS]]

    def _set_gradients(self) -> None:
        for counts in self._counts:
            counts.grad = torch.zeros_like(counts)
            counts.grad[self._number] = 1.0
        own = SERVERS * self._number
        for last in [*self._lasts][own : own + SERVERS]:
            last.grad = torch.full((1,), -float(self._step))


def _adding(counts: nn.ParameterList, lasts: nn.ParameterList) -> torch.optim.SGD:
    """Adds gradients to the counts, and stores them in the last steps."""
    adding: dict[str, Any] = {"params": [*counts], "maximize": True}
    storing: dict[str, Any] = {"params": [*lasts], "weight_decay": 1.0}
    return torch.optim.SGD([adding, storing], lr=1.0)
