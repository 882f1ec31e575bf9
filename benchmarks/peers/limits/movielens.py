"""A plain loop of PyTorch: `... benchmarks.peers.limits.movielens FD FILE`."""

from __future__ import annotations

import sys

import torch

from benchmarks.peers import recommender, timing
from benchmarks.peers.process import serve


def main(file: str) -> None:
    """Measures a step."""
    torch.set_num_threads(1)
    model = recommender.Recommender()
    step = recommender.stepping(model, recommender.adamw(model))
    batches = recommender.drawn(file)
    serve(timing.answering(lambda: step(*next(batches))))


if __name__ == "__main__":
    main(sys.argv[2])
