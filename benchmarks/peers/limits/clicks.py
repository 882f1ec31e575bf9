"""A plain loop of PyTorch: `... benchmarks.peers.limits.clicks FD FILE`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import torch

from benchmarks.peers import clicks
from benchmarks.peers.click_model import ClickModel, sparse_table
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import processor_seconds


class Loop:
    """The whole model in this process; as `clicks.Trial`."""

    def __init__(self, log: clicks.Log) -> None:
        self._log = log
        self._model = ClickModel(sparse_table, log.weights)
        self._optimizer = self._model.adagrad()
        self._batches: dict[int, Iterator[clicks.Batch]] = {}

    def first_pass(self, size: int) -> float:
        """Train on the whole file once."""
        losses = [self._step(batch) for batch in self._log.batches(size)]
        return clicks.last_quarter(losses)

    def steps(self, size: int) -> None:
        """Train on `TURN` more examples."""
        batches = self._batches.setdefault(size, self._log.endless(size))
        for _ in range(clicks.TURN // size):
            self._step(next(batches))

    def _step(self, batch: clicks.Batch) -> float:
        loss = self._model.loss(*map(torch.from_numpy, batch))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def processor_seconds(self, of: str) -> float:
        """Return what this process has used; it has no servers."""
        return processor_seconds(os.getpid()) if of == "all" else 0.0

    def close(self) -> None:
        """There is nothing to end."""


@contextmanager
def contestant(file: str) -> Iterator[Answer]:
    """What takes steps."""
    torch.set_num_threads(1)
    log = clicks.Log(file)
    with closing(clicks.Contestant(lambda: Loop(log), workers=1)) as answering:
        yield answering


if __name__ == "__main__":
    serve(contestant)
