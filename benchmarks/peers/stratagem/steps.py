"""Training steps on two servers: `... benchmarks.peers.stratagem.steps FD SETTINGS`.

SETTINGS is JSON: a stack of linear layers by "layers", "width" and "batch", the "consistency" of
the strategy, and what the "optimizer" gets besides. A step is a `run`: a pull, forward, backward,
and a push to both servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from benchmarks.peers import timing
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.stratagem.training import alone
from stratagem import DistributedOptimizer, ParameterServerStrategy


@contextmanager
def contestant(encoded: str) -> Iterator[Answer]:
    """What takes a step of one model."""
    settings = json.loads(encoded)
    with alone(ps=2, consistency=settings["consistency"]) as strategy:
        step = _training(strategy, settings)
        yield timing.answering(lambda: strategy.run(step))


def _training(strategy: ParameterServerStrategy, settings: Mapping[str, Any]) -> Callable[[], None]:
    width = settings["width"]
    with strategy.scope():
        layers = (nn.Linear(width, width) for _ in range(settings["layers"]))
        network = nn.Sequential(*layers)
    sgd = torch.optim.SGD(network.parameters(), lr=1e-3)
    optimizer = DistributedOptimizer(sgd, **settings["optimizer"])
    batch = torch.randn(settings["batch"], width)

    def step() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    serve(contestant)
