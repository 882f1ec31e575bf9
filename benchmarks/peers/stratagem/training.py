"""Training with servers, as contestants and the profile of a step do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.peers import recommender
from benchmarks.peers.stratagem.clusters import cluster
from stratagem import ClusterSpec, DistributedOptimizer, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver


@contextmanager
def alone(ps: int, **settings: Any) -> Iterator[ParameterServerStrategy]:
    """The strategy of a program that has so many servers to itself.

    Args:
        ps: How many.
        settings: What the strategy gets besides.
    """
    torch.set_num_threads(1)
    with (
        cluster(ps=ps, workers=1) as running,
        ParameterServerStrategy(
            _as_chief(running.cluster_resolver),
            token=running.cluster_resolver.cluster_token,
            **settings,
        ) as strategy,
    ):
        yield strategy


def _as_chief(resolver: ClusterResolver) -> ClusterResolver:
    servers = resolver.cluster_spec().as_dict()["ps"]
    spec = ClusterSpec({"ps": servers, "chief": ["this.invalid:1"]})
    return SimpleClusterResolver(spec, task_type="chief", task_id=0)


def recommending(strategy: ParameterServerStrategy, file: str) -> Callable[[], object]:
    """What takes a step of the MovieLens example.

    Args:
        strategy: With whose servers.
        file: The ratings.
    """
    with strategy.scope():
        model = recommender.Recommender()
    optimizer = DistributedOptimizer(recommender.adamw(model))
    step, batches = recommender.stepping(model, optimizer), recommender.drawn(file)
    return lambda: strategy.run(step, args=tuple(next(batches)))
