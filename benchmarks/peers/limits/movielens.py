"""A plain loop of PyTorch: `... benchmarks.peers.limits.movielens FD FILE`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers import recommender, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.ratings import TURN


@contextmanager
def contestant(file: str) -> Iterator[Answer]:
    """What takes a step."""
    torch.set_num_threads(1)
    model = recommender.Recommender()
    step = recommender.stepping(model, recommender.adamw(model))
    batches = recommender.drawn(file)
    turn = timing.repeated(lambda: step(*next(batches)), TURN)
    yield timing.answering(turn, each=TURN)


if __name__ == "__main__":
    serve(contestant)
