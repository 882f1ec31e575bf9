"""Two hosts with two cores each, in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratagem import TPUStrategy, config
from stratagem_deploy import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(ps=0, worker_servers=2) as running:
        yield running


@pytest.fixture
def strategy(cluster: LocalCluster) -> Iterator[TPUStrategy]:
    config.set_logical_cpus(2)
    strategy = TPUStrategy(cluster.cluster_resolver, steps_per_run=100)
    yield strategy
    strategy.extended.disconnect()
    config.set_logical_cpus(1)
