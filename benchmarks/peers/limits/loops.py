"""Plain loops of PyTorch beside each other: `... limits.loops FD FILE COUNT`.

They have nothing to do with each other, but for the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Client, Connection, Listener

import torch

from benchmarks.peers import recommender, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.processor_time import processor_seconds
from benchmarks.peers.ratings import BATCH
from benchmarks.peers.server import server

_STEPS = 200


@contextmanager
def contestant(file: str, count: str) -> Iterator[Answer]:
    """What takes steps in so many processes at once."""
    with ExitStack() as stack:
        loops = [Client(stack.enter_context(server(_loop, file))) for _ in range(int(count))]
        yield lambda _, seconds: _cost(loops)


def _cost(loops: Sequence[Connection]) -> float:
    """Seconds of processors for an example."""
    before = processor_seconds(os.getpid())
    for loop in loops:
        loop.send(_STEPS)
    for loop in loops:
        loop.recv()
    spent = processor_seconds(os.getpid()) - before
    return spent / (len(loops) * _STEPS * BATCH)


def _loop(parent: Connection, file: str) -> None:
    torch.set_num_threads(1)
    model = recommender.Recommender()
    step = recommender.stepping(model, recommender.adamw(model))
    batches = recommender.drawn(file)
    with Listener() as listener:
        parent.send(listener.address)
        with listener.accept() as asking:
            while steps := asking.recv():
                timing.repeated(lambda: step(*next(batches)), steps)()
                asking.send(steps)


if __name__ == "__main__":
    # The processes find by its name what they are to call.
    from benchmarks.peers.limits.loops import contestant

    serve(contestant)
