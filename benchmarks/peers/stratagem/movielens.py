"""Training with one server.

`... benchmarks.peers.stratagem.movielens FD FILE SETTINGS`

SETTINGS is JSON: what the strategy gets besides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.peers import timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.ratings import TURN
from benchmarks.peers.stratagem.training import alone, recommending


@contextmanager
def contestant(file: str, settings: str) -> Iterator[Answer]:
    """What takes a step."""
    with alone(ps=1, **json.loads(settings)) as strategy:
        step = recommending(strategy, file)
        yield timing.answering(timing.repeated(step, TURN), each=TURN)


if __name__ == "__main__":
    serve(contestant)
