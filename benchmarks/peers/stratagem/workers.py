"""What an example costs in processor time: `... stratagem.workers FD FILE WORKERS`.

There is one server, and as many workers as said. All wait at a barrier until the first
one is asked to measure; what they did before that does not count.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener

import torch

from benchmarks.harness.processor_time import processor_seconds
from benchmarks.peers import recommender
from benchmarks.peers.process import serve
from stratagem import DistributedOptimizer, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

_STEPS = 100


def main(file: str, workers: int) -> None:
    """Starts a cluster and has its first worker answer."""
    with (
        Listener() as listener,
        LocalCluster(ps=1, workers=workers, processes=True) as cluster,
    ):
        arguments = train, file, listener.address, os.getpid()
        threading.Thread(target=cluster.run, args=arguments, daemon=True).start()
        with listener.accept() as worker:
            serve(_asking(worker))
            # Who is at the barrier has nothing to wait for any more.
            os._exit(0)


def _asking(worker: Connection) -> Callable[[str, float], float]:
    def answer(question: str, seconds: float) -> float:
        worker.send(seconds)
        figure: float = worker.recv()
        return figure

    return answer


def train(resolver: ClusterResolver, file: str, address: str, family: int) -> None:
    """Trains as often as the first worker is asked to."""
    torch.set_num_threads(1)
    strategy = ParameterServerStrategy(resolver)
    with strategy.scope():
        model = recommender.Recommender()
    optimizer = DistributedOptimizer(recommender.adamw(model))
    step, batches = recommender.stepping(model, optimizer), recommender.drawn(file)

    def steps() -> None:
        for _ in range(_STEPS):
            strategy.run(step, args=tuple(next(batches)))

    if resolver.task_id:
        while True:
            _together(strategy, steps)
    examples = resolver.cluster_spec().num_tasks("worker") * _STEPS * recommender.BATCH
    with Client(address) as asking:
        while True:
            asking.recv()
            asking.send(_cost(strategy, steps, family) / examples)


def _cost(
    strategy: ParameterServerStrategy, steps: Callable[[], None], family: int
) -> float:
    """Seconds of processors of all processes of the cluster."""
    before = processor_seconds(family)
    _together(strategy, steps)
    return processor_seconds(family) - before


def _together(strategy: ParameterServerStrategy, steps: Callable[[], None]) -> None:
    strategy.barrier("asked")
    steps()
    strategy.barrier("trained")


if __name__ == "__main__":
    # Workers find by its name what they are to call.
    from benchmarks.peers.stratagem.workers import main

    main(sys.argv[2], int(sys.argv[3]))
