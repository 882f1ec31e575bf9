"""What an example costs: `... stratagem.workers FD FILE WORKERS STEPS`.

There is one server, and as many workers as said. Their steps are those of MovieLens, "fused", so
that each is one request, or as they are by "default"; or "small", updates of 100 bytes. All wait at
a barrier until the first one is asked to measure; what they did before that does not count.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener

import torch

from benchmarks.peers import timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.ratings import BATCH
from benchmarks.peers.stratagem.clusters import cluster
from benchmarks.peers.stratagem.training import recommending
from stratagem import ParameterServerStrategy, Variable
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import StratagemError

_STEPS = 200
_SMALL = 100


@contextmanager
def contestant(file: str, workers: str, steps: str) -> Iterator[Answer]:
    """What has a cluster, whose first worker answers."""
    with (
        Listener() as listener,
        cluster(ps=1, workers=int(workers)) as running,
    ):
        arguments = file, steps, listener.address, os.getpid()
        threading.Thread(target=_run, args=(running, *arguments), daemon=True).start()
        with listener.accept() as worker:
            yield _asking(worker)


def _run(running: LocalCluster, *arguments: object) -> None:
    # Others are at the barrier when the first worker is asked no more.
    with suppress(StratagemError):
        running.run(train, *arguments)


def _asking(worker: Connection) -> Answer:
    def answer(question: str, seconds: float) -> float:
        worker.send(question)
        figure: float = worker.recv()
        return figure

    return answer


def train(resolver: ClusterResolver, file: str, steps: str, address: str, family: int) -> None:
    """Trains as often as the first worker is asked to."""
    torch.set_num_threads(1)
    fused = True if steps == "fused" else None
    strategy = ParameterServerStrategy(resolver, fused_steps=fused)
    step = _updating(strategy) if steps == "small" else recommending(strategy, file)
    take = timing.repeated(step, _STEPS)
    if resolver.task_id:
        while True:
            _together(strategy, take)
    examples = resolver.cluster_spec().num_tasks("worker") * _STEPS * BATCH
    with Client(address) as asking, suppress(EOFError):
        while True:
            if asking.recv() == "time":
                asking.send(timing.median(partial(_together, strategy, take), 0.0) / _STEPS)
            else:
                asking.send(_cost(strategy, take, family) / examples)


def _updating(strategy: ParameterServerStrategy) -> Callable[[], object]:
    """What updates a small variable."""
    with strategy.scope():
        variable = Variable(torch.zeros(_SMALL // 4))
    return partial(strategy.run, partial(variable.assign_add, torch.ones(_SMALL // 4)))


def _cost(strategy: ParameterServerStrategy, take: Callable[[], None], family: int) -> float:
    """Seconds of processors of all processes of the cluster."""
    before = processor_seconds(family)
    _together(strategy, take)
    return processor_seconds(family) - before


def _together(strategy: ParameterServerStrategy, take: Callable[[], None]) -> None:
    strategy.barrier("asked")
    take()
    strategy.barrier("trained")


if __name__ == "__main__":
    # Workers find by its name what they are to call.
    from benchmarks.peers.stratagem.workers import contestant

    serve(contestant)
