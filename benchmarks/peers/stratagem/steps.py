"""Training steps on two servers: `... benchmarks.peers.stratagem.steps FD SETTINGS`.

SETTINGS is JSON: a stack of linear layers by "layers", "width" and "batch", the
"consistency" of the strategy, and what the "optimizer" gets besides. A step is a `run`:
a pull, forward, backward, and a push to both servers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.peers import timing
from benchmarks.peers.process import serve
from stratagem import ClusterSpec, DistributedOptimizer, ParameterServerStrategy
from stratagem.cluster_resolver import ClusterResolver, SimpleClusterResolver
from stratagem_deploy import LocalCluster


def main(settings: Mapping[str, Any]) -> None:
    """Measures a step of one model."""
    torch.set_num_threads(1)
    with (
        LocalCluster(ps=2, workers=1, processes=True) as cluster,
        ParameterServerStrategy(
            alone(cluster.cluster_resolver),
            consistency=settings["consistency"],
            token=cluster.cluster_resolver.cluster_token,
        ) as strategy,
    ):
        step = _training(strategy, settings)
        serve(lambda _, seconds: timing.median(lambda: strategy.run(step), seconds))


def _training(
    strategy: ParameterServerStrategy, settings: Mapping[str, Any]
) -> Callable[[], None]:
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


def alone(resolver: ClusterResolver) -> ClusterResolver:
    """The same servers with this program as the only one that trains."""
    servers = resolver.cluster_spec().as_dict()["ps"]
    cluster = ClusterSpec({"ps": servers, "chief": ["this.invalid:1"]})
    return SimpleClusterResolver(cluster, task_type="chief", task_id=0)


if __name__ == "__main__":
    main(json.loads(sys.argv[2]))
