"""Training with one server.

`... benchmarks.peers.stratagem.movielens FD FILE SETTINGS`

SETTINGS is JSON: what the optimizer gets besides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers import recommender, timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.stratagem.training import alone
from stratagem import DistributedOptimizer


@contextmanager
def contestant(file: str, settings: str) -> Iterator[Answer]:
    """What takes a step."""
    with alone(ps=1) as strategy:
        with strategy.scope():
            model = recommender.Recommender()
        adamw = recommender.adamw(model)
        optimizer = DistributedOptimizer(adamw, **json.loads(settings))
        step = recommender.stepping(model, optimizer)
        batches = recommender.drawn(file)
        yield timing.answering(lambda: strategy.run(step, args=tuple(next(batches))))


if __name__ == "__main__":
    serve(contestant)
