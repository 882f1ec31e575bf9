"""Two workers without servers, as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import stratagem
from stratagem import CommunicationOptions, MultiWorkerMirroredStrategy, config
from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster

SECONDS = 30.0


def on_two_workers(
    function: Callable[[MultiWorkerMirroredStrategy], Any], cpus: int = 2
) -> list[Any]:
    """Return what a function returns for the strategy of each worker.

    Args:
        function: Called on both workers at the same time.
        cpus: How many replicas each worker has.
    """
    config.set_logical_cpus(cpus)
    try:
        with LocalCluster(ps=0, workers=2) as cluster:
            return cluster.run(lambda resolver: function(strategy_of(resolver)))
    finally:
        config.set_logical_cpus(1)


def strategy_of(resolver: ClusterResolver, seconds: float = SECONDS) -> MultiWorkerMirroredStrategy:
    """Return the strategy of a worker that does not wait for ever."""
    options = CommunicationOptions(timeout_seconds=seconds)
    return MultiWorkerMirroredStrategy(resolver, options)


def replica() -> int:
    """Return the number of the running replica among those of all workers."""
    context = stratagem.get_replica_context()
    assert context is not None
    return int(context.replica_id_in_sync_group or 0)


def worker(strategy: stratagem.Strategy) -> int:
    """Return the number of this worker."""
    return strategy.extended._input_context().input_pipeline_id
