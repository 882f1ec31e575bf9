"""The click model on two servers: `... stratagem.clicks FD FILE WORKERS TABLES`.

TABLES is "example" for the model as the example has it, "sparse" for `nn.Embedding(sparse=True)`,
and "joined" for one table with the rows of all columns.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Client, Listener
from typing import Any

import torch

from benchmarks.peers import clicks
from benchmarks.peers.click_model import ClickModel, our_table, sparse_table
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.stratagem.clusters import cluster
from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver

_SERVERS = 2


class Cluster:
    """Servers, and workers that train when they are asked to; as `clicks.Trial`."""

    def __init__(self, file: str, workers: int, tables: str) -> None:
        with ExitStack() as opened:
            listener = opened.enter_context(Listener())
            running = opened.enter_context(cluster(ps=_SERVERS, workers=workers))
            arguments = train, file, workers, tables, listener.address
            threading.Thread(target=running.run, args=arguments, daemon=True).start()
            self._workers = [opened.enter_context(listener.accept()) for _ in range(workers)]
            self._opened = opened.pop_all()

    def first_pass(self, size: int) -> float:
        """Train on the whole file once."""
        return statistics.mean(self._ask_workers("first", size))

    def steps(self, size: int) -> None:
        """Train on `TURN` more examples of each worker."""
        self._ask_workers("steady", size)

    def processor_seconds(self, of: str) -> float:
        """Return what the processes have used."""
        used = processor_seconds(os.getpid())
        if of == "all":
            return used
        # In a test all of them are threads of this process.
        return max(0.0, used - time.process_time() - sum(self._ask_workers("used", 0)))

    def _ask_workers(self, question: str, size: int) -> list[float]:
        for worker in self._workers:
            worker.send((question, size))
        return [worker.recv() for worker in self._workers]

    def close(self) -> None:
        """End all processes."""
        self._opened.close()


def train(resolver: ClusterResolver, file: str, workers: int, tables: str, address: str) -> None:
    """Trains as often as it is asked to."""
    torch.set_num_threads(1)
    log = clicks.Log(file)
    strategy = ParameterServerStrategy(resolver)
    with strategy.scope():
        table = sparse_table if tables == "sparse" else our_table
        model = ClickModel(table, log.weights, joined=tables == "joined")
    optimizer = DistributedOptimizer(model.adagrad())
    mine = resolver.task_id or 0, workers

    def compute(batch: clicks.Batch) -> float:
        loss = model.loss(*map(torch.from_numpy, batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def lookups(batch: clicks.Batch) -> Any:
        return zip(model.tables, torch.from_numpy(batch.ids), strict=True)

    def mean_loss(batches: Iterator[clicks.Batch]) -> float:
        data = strategy.lookahead(batches, lookups) if tables == "example" else batches
        return clicks.last_quarter([strategy.run(compute, args=(batch,)) for batch in data])

    endless: dict[int, Iterator[clicks.Batch]] = {}
    with Client(address) as asking, suppress(EOFError):
        while True:
            question, size = asking.recv()
            if question == "used":
                asking.send(time.process_time())
            elif question == "first":
                asking.send(mean_loss(log.batches(size, *mine)))
            else:
                batches = endless.setdefault(size, log.endless(size, *mine))
                asking.send(mean_loss(islice(batches, clicks.TURN // size)))


@contextmanager
def contestant(file: str, workers: str, tables: str) -> Iterator[Answer]:
    """What takes steps."""

    def begin() -> Cluster:
        return Cluster(file, int(workers), tables)

    with closing(clicks.Contestant(begin, int(workers))) as answering:
        yield answering


if __name__ == "__main__":
    # Workers find by its name what they are to call.
    from benchmarks.peers.stratagem.clicks import contestant

    serve(contestant)
