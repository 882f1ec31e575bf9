"""Our coordinator with worker servers.

`... benchmarks.peers.stratagem.coordinator FD WORKERS`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers.coordination import answers
from benchmarks.peers.process import Answer, serve
from benchmarks.peers.stratagem.clusters import cluster
from stratagem import ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator


@contextmanager
def contestant(workers: str) -> Iterator[Answer]:
    """What has a cluster with so many workers."""
    torch.set_num_threads(1)
    with cluster(ps=1, worker_servers=int(workers)) as running:
        strategy = ParameterServerStrategy(running.cluster_resolver)
        with strategy.scope():
            variable = Variable(torch.zeros(10))

        def nothing() -> None:
            pass

        def update() -> None:
            variable.assign_add(torch.ones(10))

        closures = {"nothing": nothing, "update": update}
        yield answers(ClusterCoordinator(strategy), closures)


if __name__ == "__main__":
    serve(contestant)
