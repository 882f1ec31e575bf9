"""Our coordinator with worker servers.

`... benchmarks.peers.stratagem.coordinator FD WORKERS`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers.coordination import answers
from benchmarks.peers.process import Answer, serve
from stratagem import ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster


@contextmanager
def contestant(workers: str) -> Iterator[Answer]:
    """What has a cluster with so many workers."""
    torch.set_num_threads(1)
    with LocalCluster(ps=1, worker_servers=int(workers), processes=True) as cluster:
        strategy = ParameterServerStrategy(cluster.cluster_resolver)
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
