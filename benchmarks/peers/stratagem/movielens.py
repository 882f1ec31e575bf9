"""Training with one server.

`... benchmarks.peers.stratagem.movielens FD FILE SETTINGS`

SETTINGS is JSON: what the optimizer gets besides.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.peers import recommender, timing
from benchmarks.peers.process import serve
from benchmarks.peers.stratagem.training import alone
from stratagem import DistributedOptimizer


def main(file: str, settings: Mapping[str, Any]) -> None:
    """Measures a step."""
    with alone(ps=1) as strategy:
        with strategy.scope():
            model = recommender.Recommender()
        optimizer = DistributedOptimizer(recommender.adamw(model), **settings)
        step = recommender.stepping(model, optimizer)
        batches = recommender.drawn(file)
        serve(timing.answering(lambda: strategy.run(step, args=tuple(next(batches)))))


if __name__ == "__main__":
    main(sys.argv[2], json.loads(sys.argv[3]))
